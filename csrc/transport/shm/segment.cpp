#include "transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "core/error.h"
#include "transport/bootstrap.h"

namespace fastcomm {
namespace {

constexpr uint64_t kPage = 4096;
uint64_t pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;  // on a peer's file

Fd open_memfd(std::string& why_not) {
  Fd fd(memfd_create("fastcomm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) why_not += errno_text(" memfd_create");
  return fd;
}

Fd open_posix(std::string& why_not) {
  const std::string name = "/fastcomm-" + hex(random_bits());
  Fd fd(shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (fd.get() < 0) {
    why_not += errno_text(" shm_open");
  } else {
    shm_unlink(name.c_str());  // peers get the descriptor: the name is not needed
  }
  return fd;
}

}  // namespace

Mapping::Mapping(int fd, size_t bytes, bool check_header) : bytes_(bytes) {
  struct stat status{};
  FC_SYSCALL(fstat(fd, &status) == 0, "fstat of a shared memory segment");
  if (static_cast<uint64_t>(status.st_size) != bytes || bytes < sizeof(SegmentHeader)) {
    throw Error(ErrorCode::kSystem, concat("a shared memory segment has ", status.st_size,
                                           " bytes where ", bytes, " were announced"));
  }
  // A peer that could shrink its file could kill this process with a bus error. Files that cannot
  // be sealed (POSIX shared memory) have F_SEAL_SEAL alone or answer EINVAL; for them the check of
  // the peer's user must do.
  const int seals = fcntl(fd, F_GET_SEALS);
  const bool can_be_sealed = seals >= 0 && seals != F_SEAL_SEAL;
  if (check_header && can_be_sealed && (seals & kSeals) != kSeals) {
    throw Error(ErrorCode::kSystem, "a peer's shared memory segment is not sealed");
  }
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  FC_SYSCALL(base != MAP_FAILED, "mmap of a shared memory segment");
  base_ = static_cast<char*>(base);
  madvise(base_, bytes, MADV_DONTFORK);
  if (check_header && (!readable(0, sizeof(SegmentHeader)) || header().magic != kSegmentMagic ||
                       header().bytes != bytes)) {
    munmap(base_, bytes);
    throw Error(ErrorCode::kSystem, "a peer's shared memory segment has no valid header");
  }
}

bool Mapping::readable(uint64_t offset, size_t bytes) const {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which older headers lack
  const uint64_t first = offset / kPage * kPage;
  return madvise(base_ + first, pages(offset + bytes) - first, kPopulateRead) == 0 ||
         errno == EINVAL;
}

uint64_t Mapping::offset_of(const void* data, size_t bytes) const {
  const auto at = reinterpret_cast<uint64_t>(data) - reinterpret_cast<uint64_t>(base_);
  return at <= this->bytes() && bytes <= this->bytes() - at ? at : kNotShared;
}

void Mapping::shrink(size_t bytes) {
  FC_SYSCALL(munmap(base_ + bytes, this->bytes() - bytes) == 0, "munmap of shared memory");
  bytes_.store(bytes, std::memory_order_relaxed);
}

Mapping::~Mapping() { munmap(base_, bytes()); }

Segment::Segment(const std::string& kind, size_t bytes, size_t most) : most_(most) {
  std::string why_not;
  if (kind != "posix") {
    fd_ = open_memfd(why_not);
    kind_ = "memfd";
  }
  if (fd_.get() < 0 && kind != "memfd") {
    fd_ = open_posix(why_not);
    kind_ = "posix";
  }
  if (fd_.get() < 0) throw Error(ErrorCode::kSystem, "no shared memory:" + why_not);
  bytes = pages(bytes);
  FC_SYSCALL(ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0, "ftruncate of shared memory");
  fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_GROW);  // EINVAL for POSIX shared memory
  mapping_ = std::make_unique<Mapping>(fd_.get(), bytes, false);
  reserve(0, kPage);
  new (&mapping_->header()) SegmentHeader{kSegmentMagic, bytes, {}};
  free_[kPage] = bytes - kPage;
}

size_t Segment::settle(size_t most) {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t bytes = mapping_->bytes();
  if (std::exchange(settled_, true)) return bytes;
  const auto last = free_.empty() ? free_.end() : std::prev(free_.end());
  if (most < bytes && last != free_.end() && last->first + last->second == bytes) {
    const uint64_t kept = std::max<uint64_t>(most / kPage * kPage, last->first);
    last->second = kept - last->first;
    if (last->second == 0) free_.erase(last);
    mapping_->shrink(kept);
    FC_SYSCALL(ftruncate(fd_.get(), static_cast<off_t>(kept)) == 0, "ftruncate of shared memory");
    // Plain: a peer reads it after it has received the descriptor, and the kernel orders writes
    // before the sending of a message before its receipt.
    mapping_->header().bytes = kept;
  }
  fcntl(fd_.get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL);  // EINVAL for POSIX shared memory
  return mapping_->bytes();
}

bool Segment::settled() {
  std::lock_guard<std::mutex> lock(mutex_);
  return settled_;
}

uint64_t Segment::allocate(size_t bytes) {
  // A size too large to round up is too large anyway.
  const uint64_t wanted = bytes > mapping_->bytes() ? bytes : pages(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, available] = *it;
    if (available < wanted) continue;
    free_.erase(it);
    if (available > wanted) free_[offset + wanted] = available - wanted;
    return offset;
  }
  throw Error(
      ErrorCode::kSystem,
      concat("the shared memory segment of ", mapping_->bytes() >> 20, " MiB has no ", wanted,
             " bytes in one piece left; destroy groups that are not used, or raise ",
             mapping_->bytes() < most_
                 ? "the limits of address space (ulimit -v) and of file sizes (ulimit -f)"
                 : "FASTCOMM_SEGMENT_MB"));
}

void Segment::free(uint64_t offset, size_t bytes) {
  uint64_t length = pages(bytes);
  fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(length));
  std::lock_guard<std::mutex> lock(mutex_);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + length) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  free_[offset] = length;
}

void Segment::inherit(uint64_t offset, size_t bytes, bool inherited) {
  madvise(mapping_->at(offset), pages(bytes), inherited ? MADV_DOFORK : MADV_DONTFORK);
}

void Segment::reserve(uint64_t offset, size_t bytes) {
  FC_CHECK(offset <= mapping_->bytes() && bytes <= mapping_->bytes() - offset, "no ", bytes,
           " bytes at ", offset, " of a segment of ", mapping_->bytes());
  // Whole pages, and none after the last: a sealed file does not grow.
  const uint64_t first = offset / kPage * kPage;
  const int error = posix_fallocate(fd_.get(), static_cast<off_t>(first),
                                    static_cast<off_t>(pages(offset + bytes) - first));
  errno = error;
  FC_SYSCALL(error == 0, "reserving shared memory (posix_fallocate)");
}

}  // namespace fastcomm
