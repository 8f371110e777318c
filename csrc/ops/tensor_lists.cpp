#include "ops/tensor_lists.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "core/error.h"
#include "core/host_cache.h"
#include "kernels/reduce_cpu.h"
#include "kernels/stream_copy.h"
#include "ops/addends.h"
#include "ops/list_parts.h"
#include "tensors/dtype.h"
#include "transport/peer_view.h"

namespace fastcomm {
namespace {

/// A block that several storages lie in.
class SharedBlock {
 public:
  explicit SharedBlock(size_t bytes) : block_(HostCache::instance().take(bytes)) {}

  /// A tensor at `offset`, of the shape, strides and dtype of `like`.
  at::Tensor tensor(size_t offset, const at::Tensor& like) {
    users_.fetch_add(1, std::memory_order_relaxed);
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), like.nbytes(),
        c10::DataPtr(block_.memory + offset, this, &SharedBlock::release, at::kCPU),
        c10::GetCPUAllocator(), /*resizable=*/true);
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
    return tensor;
  }
  /// Drops the maker's share.
  static void release(void* shared) {
    auto* self = static_cast<SharedBlock*>(shared);
    // Release, and acquire by the last: reuse of the memory comes after all uses of it.
    if (self->users_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    HostCache::instance().give(self->block_);
    delete self;
  }

 private:
  HostCache::Block block_;
  std::atomic<size_t> users_{1};
};

size_t aligned(size_t bytes) {
  return (bytes + HostCache::kAlignment - 1) / HostCache::kAlignment * HostCache::kAlignment;
}

/// New tensors like `models`, which are plain, in one block.
TensorList allocate_like(const TensorList& models) {
  size_t bytes = 0;
  for (const at::Tensor& model : models) bytes += aligned(model.nbytes());
  TensorList made;
  if (models.empty()) return made;
  made.reserve(models.size());
  const auto let_go = [](SharedBlock* shared) { SharedBlock::release(shared); };
  const std::unique_ptr<SharedBlock, decltype(let_go)> block(
      new SharedBlock(std::max<size_t>(bytes, 1)), let_go);
  size_t offset = 0;
  for (const at::Tensor& model : models) {
    made.push_back(block->tensor(offset, model));
    offset += aligned(model.nbytes());
  }
  return made;
}

/// Whether lists of these sizes, written `times` times, exceed the caches.
bool streams(const std::vector<uint64_t>& sizes, int64_t times) {
  uint64_t bytes = 0;
  for (const uint64_t size : sizes) bytes += size;
  return bytes * static_cast<uint64_t>(times) >= kStreamBytes;
}

void copy(char* to, const char* from, uint64_t bytes, bool stream) {
  if (stream) {
    stream_copy(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

/// Calls `work(item, first byte, bytes)` for all of the list, divided among threads.
template <class Work>
void in_parallel(const std::vector<uint64_t>& sizes, const Work& work) {
  const std::vector<ListPart> parts = cut_list(sizes);
  constexpr int64_t kLeast = 4;  // parts a thread: for less than a mebibyte none is woken
  at::parallel_for(0, static_cast<int64_t>(parts.size()), kLeast, [&](int64_t from, int64_t to) {
    for (int64_t p = from; p < to; ++p) {
      for_each_piece(parts[p], sizes, work);
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
  const std::vector<uint64_t> sizes = sizes_of(sources);
  const bool stream = streams(sizes, copies);
  in_parallel(sizes, [&](size_t item, uint64_t begin, uint64_t bytes) {
    for (const auto& list : to) copy(list[item] + begin, from[item] + begin, bytes, stream);
  });
  return result;
}

namespace {

/// A sum whose terms differ in layout, or whose dtype has no kernel.
at::Tensor sum_otherwise(const std::vector<TensorList>& sources, size_t place) {
  const at::Tensor first = as_plain(sources[0][place]);
  const bool has_kernel =
      sources.size() <= kMaxRanks && dtype_of(first.scalar_type()) != DType::kOther;
  std::vector<TensorList> terms;
  for (const TensorList& list : sources) {
    at::Tensor term = list[place];
    if (has_kernel && (!is_plain(term) || term.strides() != first.strides())) {
      term = at::empty_like(first);
      term.copy_(list[place]);
    }
    terms.push_back({term});
  }
  if (has_kernel) return sum_lists(terms)[0];
  TensorList all;
  for (const TensorList& term : terms) all.push_back(term[0]);
  return sources.size() == 1 ? all[0].clone() : tree_sum(std::move(all));
}

}  // namespace

TensorList sum_lists(const std::vector<TensorList>& sources) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  check_addends(sources);
  const size_t count = sources[0].size(), terms = sources.size();
  TensorList result(count), models;
  std::vector<size_t> places;     // of models, in the result
  std::vector<const void*> from;  // of models: `terms` pointers each
  std::vector<ReduceFunction> functions;
  models.reserve(count);
  places.reserve(count);
  functions.reserve(count);
  from.reserve(count * terms);
  for (size_t i = 0; i < count; ++i) {
    const at::Tensor& first = sources[0][i];
    const DType dtype = dtype_of(first.scalar_type());
    bool direct = terms <= kMaxRanks && dtype != DType::kOther;
    for (size_t term = 0; term < terms; ++term) {
      const at::Tensor& tensor = sources[term][i];
      direct = direct && is_plain(tensor) && tensor.strides() == first.strides();
    }
    if (!direct) {
      result[i] = sum_otherwise(sources, i);
      continue;
    }
    models.push_back(first);
    places.push_back(i);
    functions.push_back(reduce_function(dtype, ReduceOp::kSum));
    for (const TensorList& list : sources) from.push_back(list[i].const_data_ptr());
  }
  TensorList made = allocate_like(models);
  const std::vector<char*> to = pointers(made);
  in_parallel(sizes_of(models), [&](size_t item, uint64_t begin, uint64_t bytes) {
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
    return tensor.layout() == at::kStrided && tensor.is_cpu() && !tensor.is_complex() &&
           tensor.has_storage() && !tensor.is_quantized() &&
           !tensor.unsafeGetTensorImpl()->is_python_dispatch();
  });
}

int64_t refresh_lists(const TensorList& tensors, std::vector<TensorList>& copies) {
  constexpr uint64_t kPiece = 16 * 1024;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const TensorList sources = all_plain(tensors);
  const std::vector<const char*> from = const_pointers(sources);
  const std::vector<uint64_t> sizes = sizes_of(sources);
  // First copies that are held elsewhere, and those whose form has changed: they are replaced.
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
