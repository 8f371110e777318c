#include "ops/device_lists.h"

#include "tensors/accelerator.h"
#if defined(FC_DEVICES)
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

#include "ops/addends.h"
#include "ops/device_ranks.h"
#include "tensors/dtype.h"

namespace fastcomm {
namespace {

/// Sends `tensors` of devices[0] to lists[k] on devices[k + 1].
void send(TensorList tensors, const std::vector<int>& devices,
          const std::vector<TensorList>& lists) {
  const std::vector<const char*> sources = const_pointers(tensors);
  std::vector<CopyJob> jobs;
  for (size_t i = 0; i < tensors.size(); ++i) {
    jobs.push_back(CopyJob{0, sources[i], tensors[i].nbytes(), {}});
  }
  for (size_t k = 0; k < lists.size(); ++k) {
    const std::vector<char*> copies = pointers(lists[k]);
    for (size_t i = 0; i < jobs.size(); ++i) jobs[i].dst[k + 1] = copies[i];
  }
  keep_until_enqueued(tensors);
  device_ranks(devices).exchange.copy(jobs, current_streams(devices));
  record_use(tensors, devices[0]);
}

bool on_one_device(const TensorList& tensors) { return are_on(tensors, tensors[0].get_device()); }

/// Of dense tensors: kernels copy in any order.
bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto *first = static_cast<const char*>(a.const_data_ptr()),
             *second = static_cast<const char*>(b.const_data_ptr());
  return first < second + b.nbytes() && second < first + a.nbytes();
}

}  // namespace

std::optional<std::vector<TensorList>> copy_device_lists(const TensorList& tensors,
                                                         const std::vector<int>& devices) {
  if (!can_meet(devices.size()) || !are_on(tensors, devices[0])) return std::nullopt;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  TensorList sources = all_plain(tensors);
  std::vector<TensorList> copies;
  for (size_t rank = 1; rank < devices.size(); ++rank) {
    copies.push_back(allocate_like(sources, devices[rank]));
  }
  send(std::move(sources), devices, copies);
  return copies;
}

std::optional<int64_t> refresh_device_lists(const TensorList& tensors,
                                            const std::vector<int>& devices,
                                            std::vector<TensorList>& copies) {
  if (!can_meet(devices.size()) || !are_on(tensors, devices[0])) return std::nullopt;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  TensorList sources = all_plain(tensors);
  copies.resize(devices.size() - 1);
  int64_t bytes = 0;
  for (size_t k = 0; k < copies.size(); ++k) {
    TensorList& list = copies[k];
    list.resize(sources.size());
    for (size_t i = 0; i < list.size(); ++i) {
      // Each in its own block: a copy that is still held keeps no other from being written to.
      if (!can_be_rewritten(list[i], sources[i]) || list[i].get_device() != devices[k + 1]) {
        list[i] = allocate_like({sources[i]}, devices[k + 1])[0];
      }
      bytes += static_cast<int64_t>(sources[i].nbytes());
    }
  }
  send(std::move(sources), devices, copies);
  for (size_t k = 0; k < copies.size(); ++k) record_use(copies[k], devices[k + 1]);
  return bytes;
}

bool send_device_list(const TensorList& sources, const TensorList& destinations) {
  const size_t count = sources.size();
  if (count == 0 || destinations.size() != count || !can_meet(count + 1)) return false;
  for (size_t i = 0; i < count; ++i) {
    for (const at::Tensor* tensor : {&sources[i], &destinations[i]}) {
      if (!are_on({*tensor}, tensor->get_device()) || !is_plain(*tensor)) return false;
    }
    if (!have_one_form(sources[i], destinations[i])) return false;
    for (size_t j = 0; j < count; ++j) {
      if (overlap(destinations[i], sources[j])) return false;
      if (j < i && overlap(destinations[i], destinations[j])) return false;
    }
  }
  const bool scatters = on_one_device(sources);
  if (!scatters && !on_one_device(destinations)) return false;
  const TensorList& others = scatters ? destinations : sources;
  std::vector<int> ranks{static_cast<int>((scatters ? sources : destinations)[0].get_device())};
  for (const at::Tensor& other : others) ranks.push_back(static_cast<int>(other.get_device()));
  if (std::any_of(ranks.begin(), ranks.end(), is_capturing)) return false;
  DeviceRanks& group = device_ranks(ranks);
  for (int rank = 1; rank < group.set.size(); ++rank) {
    if (scatters ? !group.set.direct(rank, 0) : !group.set.direct(0, rank)) return false;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<CopyJob> jobs;
  for (size_t i = 0; i < count; ++i) {
    const int other = static_cast<int>(i) + 1;
    CopyJob job{scatters ? 0 : other, const_pointers({sources[i]})[0], sources[i].nbytes(), {}};
    job.dst[scatters ? other : 0] = pointers({destinations[i]})[0];
    jobs.push_back(job);
    destinations[i].unsafeGetTensorImpl()->bump_version();
  }
  group.exchange.copy(jobs, current_streams(ranks));
  for (size_t i = 0; i < count; ++i) {
    record_use({sources[i]}, static_cast<int>(sources[i].get_device()));
    record_use({destinations[i]}, static_cast<int>(destinations[i].get_device()));
  }
  return true;
}

std::optional<TensorList> sum_device_lists(const std::vector<TensorList>& sources,
                                           int64_t destination, int divisor, double scale) {
  check_addends(sources);
  const size_t count = sources[0].size();
  if (!can_meet(sources.size()) || count == 0) return std::nullopt;
  std::vector<int> ranks;
  for (const TensorList& list : sources) {
    if (!is_on_accelerator(list[0]) || !are_on(list, list[0].get_device())) return std::nullopt;
    ranks.push_back(static_cast<int>(list[0].get_device()));
  }
  const auto root = std::find(ranks.begin(), ranks.end(), static_cast<int>(destination));
  if (root == ranks.end()) return std::nullopt;
  const auto kinds = by_dtype(sources[0]);
  for (const auto& [type, places] : kinds) {
    if (!has_cuda_kernel(dtype_of(type))) return std::nullopt;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  TensorList result(count);
  for (const auto& [type, places] : kinds) {
    const DType dtype = dtype_of(type);
    std::vector<TensorList> columns(sources.size());
    Sizes counts;
    for (const size_t place : places) {
      counts.push_back(static_cast<uint64_t>(sources[0][place].numel()));
      columns[0].push_back(as_plain(sources[0][place]));
      for (size_t rank = 1; rank < sources.size(); ++rank) {
        columns[rank].push_back(as_plain_like(sources[rank][place], columns[0].back()));
      }
    }
    RankSources inputs;
    for (const TensorList& column : columns) inputs.push_back(const_pointers(column));
    TensorList made = allocate_like(columns[0], static_cast<int>(destination));
    ReduceSpec spec{dtype, dtype, static_cast<int>(ranks.size()), 1, divisor, scale};
    for (TensorList& column : columns) keep_until_enqueued(column);
    device_ranks(ranks).exchange.reduce(inputs, pointers(made), counts, spec,
                                        static_cast<int>(root - ranks.begin()),
                                        current_streams(ranks));
    for (size_t rank = 0; rank < ranks.size(); ++rank) record_use(columns[rank], ranks[rank]);
    for (size_t k = 0; k < places.size(); ++k) result[places[k]] = std::move(made[k]);
  }
  return result;
}

}  // namespace fastcomm

#else

namespace fastcomm {

std::optional<std::vector<TensorList>> copy_device_lists(const TensorList&,
                                                         const std::vector<int>&) {
  return std::nullopt;
}

std::optional<int64_t> refresh_device_lists(const TensorList&, const std::vector<int>&,
                                            std::vector<TensorList>&) {
  return std::nullopt;
}

bool send_device_list(const TensorList&, const TensorList&) { return false; }

std::optional<TensorList> sum_device_lists(const std::vector<TensorList>&, int64_t, int, double) {
  return std::nullopt;
}

}  // namespace fastcomm
#endif
