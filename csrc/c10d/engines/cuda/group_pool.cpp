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

/// Address ranges of the tensors of all pools, and the users of each.
class AddressRanges {
 public:
  static AddressRanges& get() {
    static auto& all = *new AddressRanges;
    return all;
  }
  void add(const void* memory, uint64_t bytes, StreamUsers* users) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_[begin_of(memory)] = {begin_of(memory) + bytes, users};
    // Relaxed: whoever asks about a tensor was handed it after this store, and so reads this count
    // or a later one, none of which is 0 while the tensor is there.
    count_.store(ranges_.size(), std::memory_order_relaxed);
  }
  void remove(const void* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_.erase(begin_of(memory));
    count_.store(ranges_.size(), std::memory_order_relaxed);
  }
  /// Users of the tensor in which a piece lies; valid as long as the tensor. nullptr: in none.
  StreamUsers* users_of(const void* memory, uint64_t bytes) {
    if (count_.load(std::memory_order_relaxed) == 0) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto next = ranges_.upper_bound(begin_of(memory));
    if (next == ranges_.begin()) return nullptr;
    const Range& range = std::prev(next)->second;
    return begin_of(memory) + bytes <= range.end ? range.users : nullptr;
  }

 private:
  struct Range {
    uintptr_t end;
    StreamUsers* users;
  };
  static uintptr_t begin_of(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

  std::mutex mutex_;
  std::map<uintptr_t, Range> ranges_;
  std::atomic<size_t> count_{0};  // of ranges_
};

}  // namespace

/// The memory of a tensor.
class GroupPool::Piece {
 public:
  Piece(std::shared_ptr<GroupPool> pool, const PoolBlocks::Block& block, const c10::Stream& stream,
        char* memory)
      : pool_(std::move(pool)), block_(block), memory_(memory), users_(stream) {
    AddressRanges::get().add(memory_, block_.bytes, &users_);
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  ~Piece() {
    if (forked_from_endpoint()) {  // the memory is the parent's
      static_cast<void>(new std::shared_ptr<GroupPool>(std::move(pool_)));
      return;
    }
    AddressRanges::get().remove(memory_);
    pool_->give({block_, users_.owner.id(), users_.take()});
  }

 private:
  std::shared_ptr<GroupPool> pool_;
  const PoolBlocks::Block block_;
  char* const memory_;
  StreamUsers users_;
};

GroupPool::GroupPool(DeviceWay way, int device, int rank, int size, uint64_t most_bytes)
    : way_(way),
      device_(device),
      most_bytes_(most_bytes),
      peers_(device, rank, size),
      out_(std::make_shared<std::atomic<int>>(0)),
      late_(std::make_shared<LateUses>()),
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
  const c10::Stream stream = current_stream(device_);
  std::unique_lock<std::mutex> lock(mutex_);
  if (retired_) return {};
  give_settled();
  const auto block = blocks_.take(bytes_of(sizes, dtype), stream.id());
  if (!block) return {};
  late_->wait(*block, stream);
  streams_.insert(stream.id());
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

void GroupPool::give(LateUses::Piece piece) {
  const int64_t owner = piece.owner;
  std::unique_lock<std::mutex> lock(mutex_);
  late_->add(std::move(piece));
  if (retired_) ends_->add(stream_of(owner));
  out_->fetch_sub(1);  // last: a retired pool looks at those once no piece is out
  if (!retired_) return give_settled();
  lock.unlock();
  sweep_retired_windows();
}

void GroupPool::give_settled() {
  for (const LateUses::Piece& piece : late_->settled()) blocks_.give(piece.block, piece.owner);
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
  peers_.retire([out = out_, late = late_, ends = ends_, others_are_gone] {
    return out->load() == 0 && others_are_gone() && late->over() && ends->passed();
  });
}

bool is_in_a_pool(const void* memory, uint64_t bytes) {
  return AddressRanges::get().users_of(memory, bytes) != nullptr;
}

bool record_in_a_pool(const void* memory, const c10::Stream& stream) {
  StreamUsers* const users = AddressRanges::get().users_of(memory, 1);
  if (users != nullptr && !FC_LEFT_OUT(Control::kForgetUse)) users->add(stream);
  return users != nullptr;
}

}  // namespace fastcomm
#endif
