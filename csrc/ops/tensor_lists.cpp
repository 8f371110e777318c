#include "ops/tensor_lists.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>

#include "core/error.h"
#include "core/host_cache.h"
#include "kernels/reduce_cpu.h"
#include "kernels/stream_copy.h"
#include "ops/addends.h"
#include "tensors/dtype.h"
#include "transport/peer_view.h"

namespace fastcomm {
namespace {

/// Memory shared by several storages; it goes back to the cache with the last of them. The count of
/// shares orders that after all uses of it (release, and acquire by the last).
std::shared_ptr<char> shared_block(size_t bytes) {
  const HostCache::Block block = HostCache::instance().take(bytes);
  return {block.memory, [block](char*) { HostCache::instance().give(block); }};
}

/// A tensor at `offset` in a block, of the shape, strides and dtype of `like`.
at::Tensor tensor_within(const std::shared_ptr<char>& block, size_t offset,
                         const at::Tensor& like) {
  using Share = std::shared_ptr<char>;
  const auto let_go = [](void* share) { delete static_cast<Share*>(share); };
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), like.nbytes(),
      c10::DataPtr(block.get() + offset, new Share(block), let_go, at::kCPU),
      c10::GetCPUAllocator(), /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  return tensor;
}

size_t aligned(size_t bytes) {
  return (bytes + HostCache::kAlignment - 1) / HostCache::kAlignment * HostCache::kAlignment;
}

/// New tensors like `models`, which are plain, in one block.
TensorList allocate_like(const TensorList& models) {
  size_t bytes = 0;
  for (const at::Tensor& model : models) bytes += aligned(model.nbytes());
  if (models.empty()) return {};
  const std::shared_ptr<char> block = shared_block(std::max<size_t>(bytes, 1));
  size_t offset = 0;
  return of_each(models, [&](const at::Tensor& model) {
    const size_t begin = offset;
    offset += aligned(model.nbytes());
    return tensor_within(block, begin, model);
  });
}

/// True if lists of these sizes, written `times` times, exceed the caches.
bool streams(const std::vector<uint64_t>& sizes, int64_t times) {
  const uint64_t bytes = std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
  return bytes * static_cast<uint64_t>(times) >= kStreamBytes;
}

void copy(char* to, const char* from, uint64_t bytes, bool stream) {
  if (stream) {
    stream_copy(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

uint64_t bytes_of(const at::Tensor& tensor) { return tensor.nbytes(); }

/// Consecutive bytes of a list: from byte `begin` of `item` on, into later items.
struct ListPart {
  size_t item = 0;
  uint64_t begin = 0;
  uint64_t bytes = 0;
};

/// Cuts items of `sizes` bytes, all of them exactly once, into parts of about the same size for
/// threads. Cuts lie at multiples of 64 bytes of an item, or at its ends.
std::vector<ListPart> cut_list(const std::vector<uint64_t>& sizes) {
  constexpr uint64_t kMost = 256 * 1024;  // per part; a multiple of 64
  std::vector<ListPart> parts;
  ListPart part;
  for (size_t item = 0; item < sizes.size(); ++item) {
    uint64_t at = 0;
    while (at < sizes[item]) {
      const uint64_t left = sizes[item] - at, room = kMost - part.bytes;
      uint64_t taken = std::min(left, room);
      if (taken < left) taken = taken / 64 * 64;
      if (taken == 0) {
        parts.push_back(part);
        part = {item, at, 0};
        continue;
      }
      if (part.bytes == 0) part = {item, at, 0};
      part.bytes += taken;
      at += taken;
    }
  }
  if (part.bytes != 0) parts.push_back(part);
  return parts;
}

/// Calls `work(item, first byte, bytes)` for all of the list, divided among threads.
template <class Work>
void in_parallel(const std::vector<uint64_t>& sizes, const Work& work) {
  const std::vector<ListPart> parts = cut_list(sizes);
  constexpr int64_t kLeast = 4;  // parts per thread: less than a mebibyte wakes none
  at::parallel_for(0, static_cast<int64_t>(parts.size()), kLeast, [&](int64_t from, int64_t to) {
    for (int64_t p = from; p < to; ++p) {
      auto [item, begin, left] = parts[p];
      for (; left != 0; ++item, begin = 0) {
        const uint64_t bytes = std::min(left, sizes[item] - begin);
        if (bytes != 0) work(item, begin, bytes);
        left -= bytes;
      }
    }
  });
}

}  // namespace

std::vector<TensorList> copy_lists(const TensorList& tensors, int64_t copies) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const TensorList sources = all_plain(tensors);
  std::vector<TensorList> result;
  for (int64_t copy = 0; copy < copies; ++copy) result.push_back(allocate_like(sources));
  const std::vector<const char*> from = const_pointers(sources);
  std::vector<std::vector<char*>> to;
  for (const TensorList& list : result) to.push_back(pointers(list));
  const std::vector<uint64_t> sizes = of_each(sources, bytes_of);
  const bool stream = streams(sizes, copies);
  in_parallel(sizes, [&](size_t item, uint64_t begin, uint64_t bytes) {
    for (const auto& list : to) copy(list[item] + begin, from[item] + begin, bytes, stream);
  });
  return result;
}

namespace {

/// A sum without one of our kernels.
at::Tensor sum_by_torch(const std::vector<TensorList>& sources, size_t place) {
  TensorList terms;
  for (const TensorList& list : sources) terms.push_back(list[place]);
  return terms.size() == 1 ? terms[0].clone() : tree_sum(std::move(terms));
}

}  // namespace

TensorList sum_lists(const std::vector<TensorList>& sources) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  check_addends(sources);
  const size_t count = sources[0].size(), terms = sources.size();
  TensorList result(count), models;
  TensorList others;              // terms beside models: alive until the end
  std::vector<size_t> places;     // of models, in the result
  std::vector<const void*> from;  // of models: `terms` pointers each
  std::vector<ReduceFunction> functions;
  models.reserve(count);
  others.reserve(count * (terms - 1));
  places.reserve(count);
  functions.reserve(count);
  from.reserve(count * terms);
  for (size_t i = 0; i < count; ++i) {
    const DType dtype = dtype_of(sources[0][i].scalar_type());
    if (terms > kMaxRanks || dtype == DType::kOther) {
      result[i] = sum_by_torch(sources, i);
      continue;
    }
    models.push_back(as_plain(sources[0][i]));
    places.push_back(i);
    functions.push_back(reduce_function(dtype, ReduceOp::kSum));
    from.push_back(models.back().const_data_ptr());
    for (size_t term = 1; term < terms; ++term) {
      others.push_back(as_plain_like(sources[term][i], models.back()));
      from.push_back(others.back().const_data_ptr());
    }
  }
  TensorList made = allocate_like(models);
  const std::vector<char*> to = pointers(made);
  in_parallel(of_each(models, bytes_of), [&](size_t item, uint64_t begin, uint64_t bytes) {
    const void* here[kMaxRanks];
    for (size_t term = 0; term < terms; ++term) {
      here[term] = static_cast<const char*>(from[item * terms + term]) + begin;
    }
    functions[item](ReduceSpan{to[item] + begin, nullptr, here, static_cast<int>(terms),
                               bytes / models[item].element_size(), 1});
  });
  for (size_t i = 0; i < places.size(); ++i) result[places[i]] = std::move(made[i]);
  return result;
}

bool are_plain_cpu(const TensorList& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return has_memory(tensor) && tensor.is_cpu() && !tensor.is_complex();
  });
}

int64_t refresh_lists(const TensorList& tensors, std::vector<TensorList>& copies) {
  constexpr uint64_t kPiece = 16 * 1024;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const TensorList sources = all_plain(tensors);
  const std::vector<const char*> from = const_pointers(sources);
  const std::vector<uint64_t> sizes = of_each(sources, bytes_of);
  // First replaces copies that are held elsewhere, and those whose form has changed.
  for (TensorList& list : copies) {
    FC_CHECK(list.size() == sources.size(), "refresh: lists of ", sources.size(), " and ",
             list.size(), " tensors");
    TensorList models;
    std::vector<size_t> places;
    for (size_t i = 0; i < list.size(); ++i) {
      if (can_be_rewritten(list[i], sources[i])) continue;
      models.push_back(sources[i]);
      places.push_back(i);
    }
    const TensorList fresh = allocate_like(models);
    for (size_t i = 0; i < places.size(); ++i) list[places[i]] = fresh[i];
  }
  std::vector<std::vector<char*>> to;
  for (const TensorList& list : copies) to.push_back(pointers(list));
  std::atomic<int64_t> written{0};
  const bool stream = streams(sizes, static_cast<int64_t>(copies.size()));
  in_parallel(sizes, [&](size_t item, uint64_t begin, uint64_t bytes) {
    int64_t here = 0;
    for (uint64_t at = begin; at < begin + bytes; at += kPiece) {
      const uint64_t length = std::min(kPiece, begin + bytes - at);
      for (const auto& list : to) {
        if (std::memcmp(list[item] + at, from[item] + at, length) == 0) continue;
        copy(list[item] + at, from[item] + at, length, stream);
        here += static_cast<int64_t>(length);
      }
    }
    written.fetch_add(here, std::memory_order_relaxed);
  });
  return written.load(std::memory_order_relaxed);
}

}  // namespace fastcomm
