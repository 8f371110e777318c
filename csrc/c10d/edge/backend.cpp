#include "c10d/edge/backend.h"

#include <ATen/ops/empty.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "c10d/edge/shared_tensor.h"
#include "c10d/life/aside.h"
#include "c10d/life/exception.h"
#include "c10d/life/groups.h"
#include "c10d/life/hooks.h"
#include "c10d/life/store_bootstrap.h"
#include "c10d/life/without_gil.h"
#include "transport/fork.h"

namespace fastcomm {
namespace {

/// Start of a warning of a part of a group: the group's words, and the ranks of the part.
std::string label_of_part(const std::string& group, const std::vector<int>& ranks) {
  std::string list;
  for (const int rank : ranks) list += concat(list.empty() ? "" : ", ", rank);
  const size_t at = std::min(group.find("group "), group.size());
  return concat(group.substr(0, at), "ranks [", list, "] of ", group.substr(at));
}

}  // namespace

std::atomic<uint64_t> FastcommBackend::changes_{0};

FastcommBackend::FastcommBackend(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                                 Milliseconds timeout, c10::intrusive_ptr<::c10d::Store> lane_store,
                                 std::shared_ptr<void> kept, const std::string& label,
                                 std::vector<uint64_t> members)
    : ::c10d::Backend(rank, size),
      kept_(std::move(kept)),
      options_(c10::make_intrusive<Options>(kBackendName, timeout)),
      label_(label),
      continuations_(Continuations::create()) {
  ++changes_;
  options_->global_ranks_in_group = std::move(members);
  translating([&] {
    StoreBootstrap bootstrap(store);
    bootstrap.label = label;
    open_records();
    Formed formed = form_group(bootstrap, rank, size, deadline_after(timeout));
    traits_ = std::move(formed.traits);
    token_ = formed.token;
    records_ = RecordsOfGroup(rank, size, token_, label, options_->global_ranks_in_group);
    why_not_composed_ = formed.group != nullptr ? "all ranks share memory" : formed.host.why_not;
    if (formed.group == nullptr) {
      host_ = std::move(formed.host);
      host_thresholds_ = host_.thresholds;
      if (host_.group != nullptr) hosts_ = host_.layout.hosts;
      lane_store_ = std::move(lane_store);
      return;
    }
    formed.group->set_label(label);
    engines_ = std::make_unique<Engines>(std::move(formed.group), context(), std::move(lane_store));
    begin_record();
  });
}

FastcommBackend::~FastcommBackend() {
  ++changes_;
  // Threads that end here (another backend's, the continuations') may need the GIL to drop Python
  // objects that they hold. The thread that drops the last reference may hold it: a Python object
  // (always so on torch 2.14), or torch's C++, for example when a DistributedDataParallel outlives
  // its group.
  const WithoutGil no_gil;
  record_.reset();  // whose thread asks the engines
  const bool failed = !forked_from_endpoint() && engines_ != nullptr && delegate_ != nullptr &&
                      engines_->host().is_in_trouble();
  if (forked_from_endpoint()) {
    if (engines_ != nullptr) {
      engines_->host().abandon();
      for (Engine* each : engines_->others()) each->abandon();
    }
    if (delegate_ != nullptr) delegate_.release();
  } else {
    continuations_->close();
  }
  engines_.reset();
  if (failed) let_go_aside(std::move(delegate_));
  delegate_.reset();
}

void FastcommBackend::delegate_to(BackendPtr whole, const std::string& hosts, std::string address) {
  delegate_ = whole;
  if (!hosts.empty()) traits_.why_not_native += ". " + hosts;
  translating([&] {
    engines_ = std::make_unique<Engines>(std::move(whole), std::move(host_), context(), label_,
                                         std::move(address), std::move(lane_store_));
  });
  begin_record();
}

void FastcommBackend::begin_record() {
  record_ = RecordedGroup::create(rank_, token_, options_->global_ranks_in_group, [this] {
    if (engines_->host().is_in_trouble()) return true;
    const auto others = engines_->others();
    return std::any_of(others.begin(), others.end(),
                       [](const Engine* each) { return each->is_in_trouble(); });
  });
}

uint64_t FastcommBackend::getSequenceNumberForGroup() {
  uint64_t number = engines_->host().submitted();
  for (const Engine* each : engines_->others()) number += each->submitted();
  return number;
}

void FastcommBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  engines_->host().set_timeout(timeout);
  for (Engine* each : engines_->others()) each->set_timeout(timeout);
}

void FastcommBackend::shutdown() {
  ++changes_;
  if (forked_from_endpoint()) return;
  const std::string failure = g_failure ? g_failure(false) : "";
  if (record_ != nullptr) record_->close(!failure.empty());
  records_.close();
  const std::string how =
      failure.empty() ? "" : "destroyed its process group because of " + failure;
  // The host's engine tells the others, which wait for it.
  for (Engine* each : engines_->others()) each->leave(how);
  engines_->host().leave(how);
}

void FastcommBackend::abort() {
  ++changes_;
  if (forked_from_endpoint()) return;
  engines_->host().abort();
  // The same failure ends them at once.
  for (Engine* each : engines_->others()) each->fail(engines_->host().failure());
}

std::exception_ptr FastcommBackend::failure() const {
  for (const Engine* each : engines_->others()) {
    if (const auto failure = each->failure()) return failure;
  }
  return engines_->host().failure();
}

void FastcommBackend::raise_failure(const char* operation) {
  if (const auto failure = this->failure()) std::rethrow_exception(come_after(failure, operation));
}

::c10d::ErrorType FastcommBackend::getError() {
  const std::exception_ptr failure = this->failure();
  if (failure == nullptr) return ::c10d::ErrorType::SUCCESS;
  const ErrorCode code = code_of(failure);
  if (code == ErrorCode::kTimeout) return ::c10d::ErrorType::TIMEOUT;
  const bool remote = code == ErrorCode::kPeerLost || code == ErrorCode::kPeerLeft;
  return remote ? ::c10d::ErrorType::REMOTE_ERROR : ::c10d::ErrorType::COMM_ERROR;
}

FastcommBackend::BackendPtr FastcommBackend::split(const c10::intrusive_ptr<::c10d::Store>& store,
                                                   const std::vector<int>& ranks,
                                                   const c10::intrusive_ptr<Options>& opts) {
  const auto found = std::find(ranks.begin(), ranks.end(), getRank());
  if (found == ranks.end()) return nullptr;
  const auto under = [&store](const char* prefix) {
    return c10::make_intrusive<::c10d::PrefixStore>(prefix, store);
  };
  std::vector<uint64_t> members;
  for (const int rank : ranks) members.push_back(options_->global_ranks_in_group.at(rank));
  auto part = c10::make_intrusive<FastcommBackend>(
      under("fastcomm/"), static_cast<int>(found - ranks.begin()), static_cast<int>(ranks.size()),
      opts == nullptr ? options_->timeout : opts->timeout, under("fastcomm/communicators/"), kept_,
      label_of_part(label_, ranks), std::move(members));
  if (!part->traits().native) {  // no one here could make another backend
    throw TorchError(ErrorCode::kSystem, concat("split_group: ", part->traits().why_not_native,
                                                ". new_group() makes one over Gloo"));
  }
  return part;
}

bool FastcommBackend::supportsTensorAlloc(c10::DeviceIndex) {
  return traits_.native && getSize() > 1;
}

at::Tensor FastcommBackend::shared_empty_on(c10::Device device, at::IntArrayRef sizes,
                                            at::ScalarType dtype, std::string& why) {
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  const WithoutGil no_gil;  // it may wait for other ranks, or for threads that let go of tensors
  return translating([&] { return engines_->shared_empty(device, sizes, dtype, why); });
}

at::Tensor FastcommBackend::allocateTensor(long size, at::TensorOptions options) {
  // DDP's reducer asks for the elements of its complex parameters, and lays views of real numbers,
  // two for each, over the result.
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  if (!c10::isComplexType(dtype)) return allocate_elements(size, options);
  return allocate_elements(2 * size, options.dtype(c10::toRealValueType(dtype)));
}

at::Tensor FastcommBackend::allocate_elements(long size, at::TensorOptions options) {
  if (options.device().is_cpu()) {
    try {
      return shared_empty({size}, c10::typeMetaToScalarType(options.dtype()));
    } catch (const Error& error) {
      TORCH_WARN_ONCE("fastcomm: a bucket of ", size,
                      " elements lies in ordinary memory: ", error.what());
    }
  }
  if (!options.device().is_cpu()) {
    std::string why;
    const c10::DeviceGuard guard(options.device());
    const at::Tensor tensor =
        shared_empty_on(options.device(), {size}, c10::typeMetaToScalarType(options.dtype()), why);
    if (tensor.defined()) return tensor;
  }
  return at::empty({size}, options);
}

}  // namespace fastcomm
