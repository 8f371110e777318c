// One process's shared memory: a sealed memory file, its mapping, and the ranges in use.
//
// The file has the largest size that the process may ever use (FASTCOMM_SEGMENT_MB, or less if
// limits of the process are lower: transport/shm/room.h) but is sparse; reserve() backs a part of
// it before use, so that running out of memory is an error and not a bus error. Its size may fall
// once, before the first peer gets it, to the size that all peers can map; from then on it is
// sealed. A memfd has no name and is not bounded by the size of /dev/shm; if the kernel has none, a
// POSIX shared memory object is unlinked as soon as it is open. Either way nothing is left when the
// last process is gone. Mappings are MADV_DONTFORK: a forked child has none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "transport/control_block.h"
#include "transport/doorbell.h"
#include "transport/fd.h"

namespace fastcomm {

/// The start of every segment.
struct SegmentHeader {
  uint64_t magic;
  uint64_t bytes;
  Doorbell doorbell;
};
constexpr uint64_t kSegmentMagic = 0x31306d6d6f637366;  // "fscomm01"

/// A mapped segment, a peer's or this rank's.
class Mapping {
 public:
  /// Maps all of `fd`. A peer's file must be sealed against shrinking if the kernel can seal, and
  /// start with a valid header. Raises Error(kSystem).
  Mapping(int fd, size_t bytes, bool check_header);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  char* at(uint64_t offset) const { return base_ + offset; }
  /// True if a part can be read without a bus error, which a hole in a full file system, or missing
  /// huge pages, would raise. On kernels before Linux 5.14 the peer is trusted.
  bool readable(uint64_t offset, size_t bytes) const;
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  /// Offset of `bytes` at `data` in the segment, kNotShared if they do not lie there.
  uint64_t offset_of(const void* data, size_t bytes) const;
  /// Unmaps all after the first `bytes`, which nobody uses.
  void shrink(size_t bytes);
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(base_); }

 private:
  char* base_;
  // Changes once, in shrink(). Others may look up addresses of memory that stays mapped meanwhile:
  // they find the same with either size.
  std::atomic<size_t> bytes_;
};

/// This process's segment. Thread-safe.
class Segment {
 public:
  /// `kind` is auto, memfd or posix. `most` is the size in the setting, for messages. Raises
  /// Error(kSystem) with the reason of each kind tried.
  Segment(const std::string& kind, size_t bytes, size_t most);

  int fd() const { return fd_.get(); }
  const char* kind() const { return kind_; }
  const Mapping& mapping() const { return *mapping_; }

  /// Gives up memory beyond `most` bytes that is not in use, and seals the file, before a peer gets
  /// the descriptor. Later calls change nothing. Returns the size.
  size_t settle(size_t most);
  bool settled();

  /// Takes a page-aligned range. If the segment is full, raises Error(kSystem) that names its
  /// limit.
  uint64_t allocate(size_t bytes);
  /// Gives a range back, and its memory to the system.
  void free(uint64_t offset, size_t bytes);
  /// Lets a child of fork() have a range too, or not (the default); with it, both share the range.
  void inherit(uint64_t offset, size_t bytes, bool inherited);
  /// Backs a range with memory. Raises Error(kSystem) if there is none left.
  void reserve(uint64_t offset, size_t bytes);

 private:
  const char* kind_ = "";
  const size_t most_;
  Fd fd_;
  std::unique_ptr<Mapping> mapping_;
  std::mutex mutex_;
  bool settled_ = false;
  std::map<uint64_t, uint64_t> free_;  // offset -> bytes, coalesced
};

}  // namespace fastcomm
