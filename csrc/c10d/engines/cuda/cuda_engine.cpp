#include "c10d/engines/cuda/cuda_engine.h"
#if defined(FC_DEVICES)
#include <c10/util/Logging.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "c10d/life/exception.h"
#include "c10d/life/hooks.h"
#include "c10d/requests/calls.h"
#include "coll/operations.h"
#include "core/device_guard.h"
#include "transport/fork.h"

namespace fastcomm {
namespace {

/// Queries name no reduction for lists.
ReduceOp reduction(const Query& query) {
  return row_of(query.kind).takes_list ? ReduceOp::kSum : query.op;
}

/// What a look raises ends the group.
std::unique_ptr<Watch> watch_of(const std::shared_ptr<CudaGroup>& group, ThreadName name,
                                bool (*look)(CudaGroup&)) {
  return std::make_unique<Watch>(name, [group, look] {
    bool busy = true;
    if (const auto error = caught([&] { busy = look(*group); })) {
      group->give_up("none", ErrorCode::kSystem, what_of(error));
    }
    return busy;
  });
}

bool look_at_device(CudaGroup& group) {
  // Until the thread ends. Objects that it lets go of belong to that device; others get no context
  // of this process.
  thread_local const DeviceGuard guard(group.device());
  return group.look();
}

}  // namespace

CudaEngine::CudaEngine(std::shared_ptr<CudaGroup> group, std::unique_ptr<PoolOutOfBand> out_of_band,
                       GroupContext context)
    : Engine(std::move(context)),
      group_(std::move(group)),
      out_of_band_(std::move(out_of_band)),
      watches_{watch_of(group_, "fc-device", look_at_device),
               watch_of(group_, "fc-device-host",
                        [](CudaGroup& group) { return group.look_at_host(); })} {
  for (int op = 0; op < kNumReduceOps; ++op) {
    for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
      const std::pair pair{static_cast<DType>(dtype), static_cast<ReduceOp>(op)};
      if (group_->reduces(pair.first, pair.second)) kernels_.insert(pair);
    }
  }
}

CudaEngine::~CudaEngine() {
  if (forked_from_endpoint()) return;
  if (const auto error = caught([&] { leave(""); })) {
    LOG(WARNING) << "fastcomm: " << what_of(error);
  }
}

bool CudaEngine::moves(at::TensorList tensors) const {
  return std::all_of(tensors.begin(), tensors.end(), [this](const at::Tensor& tensor) {
    return is_on_accelerator(tensor) && tensor.get_device() == group_->device() &&
           tensor.layout() == at::kStrided && !tensor.is_quantized();
  });
}

bool CudaEngine::reduces(at::TensorList tensors, const ::c10d::ReduceOp& op) const {
  const ReduceOp reduction = reduce_op_of(op);
  return !has_factor_on_device(op) &&
         std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
           const DType dtype = dtype_of(c10::toRealValueType(tensor.scalar_type()));
           return kernels_.count({dtype, reduction}) != 0;
         });
}

bool CudaEngine::takes(const Request& request) const {
  if (row_of(request.kind).peers.work == PeerWay::Work::kNone) return false;
  if (!moves(request.inputs) || !moves(request.outputs)) return false;
  // A root's list may lie anywhere: the others do not know its place.
  const bool has_root = request.root != Request::kNoRank;
  for (const auto& lists : {request.input_lists, request.output_lists}) {
    for (const Tensors& list : lists) {
      if (!has_root && !moves(list)) return false;
    }
  }
  if (request.is_over_list()) return !request.outputs.empty();
  if (request.op == nullptr) return true;
  // If parts have several sizes, each rank would reduce only its own.
  const bool in_parts = !request.input_lists.empty() && !request.outputs.empty();
  return reduces(request.outputs, *request.op) &&
         (!in_parts || are_even(request.input_lists[0], request.outputs[0]));
}

bool CudaEngine::takes(const Query& query) const {
  const OperationRow& row = row_of(query.kind);
  return row.peers.work != PeerWay::Work::kNone &&
         (!(row.reduces || row.takes_list) || kernels_.count({query.dtype, reduction(query)}) != 0);
}

Algorithm CudaEngine::path_of(const Call& call) const {
  return group_->is_one_launch(call) ? Algorithm::kOneShot : Algorithm::kPipelined;
}

Selection CudaEngine::explain(const Query& query) const {
  Call call;
  call.kind = query.kind;
  call.dtype = query.dtype;
  call.op = reduction(query);
  call.count = query.bytes / dtype_size(query.dtype);
  const Algorithm path = path_of(call);
  const bool at_once = path == Algorithm::kOneShot;
  const CudaGroup::Options& options = group_->options();
  const bool on_devices = options.home == WindowHome::kDevices;
  return {path, concat("the ranks' devices ",
                       on_devices ? "reach each other's memory" : "share pinned memory of the host",
                       ": they meet",
                       at_once ? " in the kernel that does the work"
                               : ", one kernel a rank does the work, and they meet again",
                       ". In one launch where a rank reads at most ", options.slot_bytes,
                       " bytes (", chosen_by_text(options.slot_by, "FASTCOMM_ONE_SHOT_BYTES"), ")",
                       on_devices ? group_->how() : concat(". Not each other's: ", options.why))};
}

at::Tensor CudaEngine::shared_empty(at::IntArrayRef sizes, at::ScalarType dtype, std::string& why) {
  return group_->empty(sizes, dtype, *out_of_band_, g_interrupt_check, why);
}

WorkPtr CudaEngine::submit(const Request& request) {
  const bool sends = !request.is_over_list() || group_->failure() == nullptr;
  Calls calls = calls_of({rank(), size(), Home::kTensor, sends}, request);
  WorkPtr work;
  for (Prepared& each : calls) {
    work = enqueue(request, std::move(each), &each == &calls.back());
  }
  return work;
}

WorkPtr CudaEngine::enqueue(const Request& request, Prepared made, bool is_last) {
  const char* const name = made.name();
  check_not_forked([&] { return message_front(rank(), size(), -1, name, calls_); });
  ++calls_;
  const auto about = [&] {
    return CudaWork::Call{
        group_, rank(), request.type, name, is_last ? request.value() : Tensors{}, continuations()};
  };
  if (const auto failure = group_->failed_before(name)) {
    const auto& steps = made.held.steps;
    if (steps != nullptr && steps->instead) steps->instead();
    return CudaWork::failed(about(), failure);
  }
  const Algorithm path = path_of(made.call);
  std::optional<CudaWork::Call> call;
  if (request.async) call.emplace(about());
  wake();  // raises if there is no thread, before anything is enqueued
  FlightPtr flight;
  try {
    flight = group_->submit(std::move(made), timeout_or_default(request.timeout), request.async);
  } catch (...) {
    wake();
    throw;
  }
  wake();  // they may have looked, and slept, before there was anything to see
  if (is_last) {
    const bool is_captured = flight->about.capture != 0;
    request.end.record.number(is_captured ? records::kNoSequence : flight->about.number,
                              static_cast<uint8_t>(path));
    if (!request.async) flight->end_with(std::exchange(request.end, {}));
  }
  if (!request.async) return nullptr;  // means "done" to c10d for a synchronous call
  return c10::make_intrusive<CudaWork>(std::move(*call), std::move(flight));
}

void CudaEngine::wake() {
  for (const auto& watch : watches_) watch->wake();
}

void CudaEngine::leave(const std::string&) {
  if (left_.exchange(true)) return;  // any later reason is the group's end
  group_->leave(g_interrupt_check);
  // This may be the first to report it: nobody has waited since.
  if (const auto failure = group_->untold()) {
    group_->tell();
    LOG(WARNING) << "fastcomm: " << what_of(failure);
  }
}

void CudaEngine::abort() {
  group_->give_up("none", ErrorCode::kPoisoned, concat("rank ", rank(), " called abort()"));
}

void CudaEngine::abandon() {
  for (auto& watch : watches_) static_cast<void>(watch.release());
  static_cast<void>(new std::shared_ptr<CudaGroup>(group_));  // its events and windows, for ever
}

}  // namespace fastcomm
#endif
