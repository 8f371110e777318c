#include "c10d/engines/cuda/group_pool.h"
#if defined(FC_DEVICES)
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <map>
#include <utility>

#include "transport/fork.h"

namespace fastcomm {
namespace {

constexpr uint64_t kLeastSegment = uint64_t{16} << 20;  // Trial::kMostBytes, at least
constexpr uint64_t kSegmentStep = uint64_t{2} << 20;

/// Address ranges of the tensors of all pools.
class AddressRanges {
 public:
  static AddressRanges& get() {
    static auto& all = *new AddressRanges;
    return all;
  }
  void add(const void* memory, uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_[begin_of(memory)] = begin_of(memory) + bytes;
  }
  void remove(const void* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_.erase(begin_of(memory));
  }
  bool has(const void* memory, uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto next = ends_.upper_bound(begin_of(memory));
    return next != ends_.begin() && begin_of(memory) + bytes <= std::prev(next)->second;
  }

 private:
  static uintptr_t begin_of(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

  std::mutex mutex_;
  std::map<uintptr_t, uintptr_t> ends_;
};

}  // namespace

/// The memory of a tensor.
class GroupPool::Piece {
 public:
  Piece(std::shared_ptr<GroupPool> pool, const PoolBlocks::Block& block, int64_t stream,
        char* memory)
      : pool_(std::move(pool)), block_(block), stream_(stream), memory_(memory) {
    AddressRanges::get().add(memory_, block_.bytes);
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  ~Piece() {
    if (forked_from_endpoint()) {  // the memory is the parent's
      static_cast<void>(new std::shared_ptr<GroupPool>(std::move(pool_)));
      return;
    }
    AddressRanges::get().remove(memory_);
    pool_->give(block_, stream_);
  }

 private:
  std::shared_ptr<GroupPool> pool_;
  const PoolBlocks::Block block_;
  const int64_t stream_;
  char* const memory_;
};

GroupPool::GroupPool(DeviceWay way, int device, int rank, int size, uint64_t most_bytes)
    : way_(way),
      device_(device),
      most_bytes_(most_bytes),
      peers_(device, rank, size),
      out_(std::make_shared<std::atomic<int>>(0)),
      ends_(std::make_shared<StreamEnds>(device)) {}

uint64_t GroupPool::segment_bytes(uint64_t bytes) {
  bytes = std::max(PoolBlocks::rounded(bytes), kLeastSegment);
  return (bytes + kSegmentStep - 1) / kSegmentStep * kSegmentStep;
}

uint64_t GroupPool::bytes_of(at::IntArrayRef sizes, at::ScalarType dtype) {
  uint64_t bytes = c10::elementSize(dtype);
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) return 0;
  }
  return bytes;
}

at::Tensor GroupPool::empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  const int64_t stream = current_stream(device_).id();
  std::unique_lock<std::mutex> lock(mutex_);
  if (retired_) return {};
  const auto block = blocks_.take(bytes_of(sizes, dtype), stream);
  if (!block) return {};
  streams_.insert(stream);
  char* const memory = begins_[block->segment] + block->offset;
  out_->fetch_add(1);  // under the lock: a retirement of the pool meanwhile keeps its memory
  lock.unlock();
  auto piece = std::make_shared<Piece>(shared_from_this(), *block, stream, memory);
  return at::for_blob(memory, sizes)
      .deleter([piece = std::move(piece)](void*) mutable { piece.reset(); })
      .options(at::TensorOptions().dtype(dtype).device(accelerator_device(device_)))
      .target_device(accelerator_device(device_))
      .allocator(c10::GetAllocator(kAccelerator))
      .resizeable_storage()
      .make_tensor();
}

void GroupPool::give(const PoolBlocks::Block& block, int64_t stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!retired_) {
    out_->fetch_sub(1);
    return blocks_.give(block, stream);
  }
  lock.unlock();
  ends_->add(stream_of(stream));
  out_->fetch_sub(1);  // last: a sweep that finds no pieces finds their streams' ends
  sweep_retired_windows();
}

void GroupPool::grow(OutOfBand& out_of_band, uint64_t bytes,
                     const std::function<void(char*)>& prove) {
  bytes = segment_bytes(bytes);
  peers_.grow(out_of_band, device_memory(way_, device_), bytes);
  total_ += bytes;
  prove(peers_.begin(peers_.segments() - 1));
  const std::lock_guard<std::mutex> lock(mutex_);
  begins_.resize(peers_.segments());
  begins_.back() = peers_.begin(peers_.segments() - 1);
  blocks_.add(peers_.segments() - 1, bytes);
}

void GroupPool::retire(const std::function<bool()>& others_are_gone) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    retired_ = true;
    for (const int64_t id : streams_) ends_->add(stream_of(id));
  }
  peers_.retire([out = out_, ends = ends_, others_are_gone] {
    return out->load() == 0 && others_are_gone() && ends->passed();
  });
}

bool is_in_a_pool(const void* memory, uint64_t bytes) {
  return AddressRanges::get().has(memory, bytes);
}

}  // namespace fastcomm
#endif
