// What processes share about memory that one of them exports: one ledger an allocation, in shared
// memory beside it.
//
// The owner's ledgers lie in slots of one memfd; whoever opens a handle maps the slot of that
// allocation alone, through /proc/PID/fd, which the kernel grants to the same user. No name is
// made, so nothing is left behind, however processes end.
//
// A card says what the memory is. Its words are written under the ledger's lock, except the
// generation, which a handle has to match: an old handle never opens what came later into its slot.
// A mapping holds a shared lock on the slot's byte of the file, by its own open file description:
// the kernel releases it when the process ends, so `mapped_elsewhere` counts living processes
// alone.
//
// The lock is robust: where its holder was killed, the next one goes on, with an empty shadow,
// since the old one may be half updated.
//
// The rest is for shim/shared_memory.h: what is known of flags, and the shadow of the memory.
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "shim/shared_shadow.h"

namespace fastcomm::shim {

/// A number that no other process shares, not even a later one with the same pid.
inline uint32_t process_number() {
  static uint32_t number = [] {
    const auto draw = [] {
      uint32_t drawn = 0;
      while (drawn == 0) static_cast<void>(getrandom(&drawn, sizeof(drawn), 0));
      number = drawn;
    };
    draw();
    pthread_atfork(nullptr, nullptr, draw);
    return number;
  }();
  return number;
}

struct Card {
  std::atomic<uint64_t> generation;  // 0: of nothing
  pid_t pid;                         // of the owner
  uint32_t process;
  int file;  // of the owner's: where the memory is
  int device;
  uint64_t offset;
  uint64_t bytes;
  bool freed;
  FlatClock exported;  // what the exporter's host knew, when somebody last got a handle
};

/// A word with one writer, and what the value in it says.
struct SharedFlag {
  uint64_t end;  // of its bytes; 0: no flag
  FlatClock clock;
};

struct Ledger {
  static constexpr uint32_t kMostFlags = 256;
  static constexpr uint32_t kMostNames = 512;
  static constexpr uint32_t kNameBytes = 128;

  pthread_mutex_t mutex;
  Card card;
  SharedFlag flags[kMostFlags];  // the first zero ends them
  uint32_t count_names;
  char names[kMostNames][kNameBytes];
  SharedShadow shadow;

  /// The number of a piece of work's words; the last one's if there are too many.
  uint32_t name_of(const std::string& words) {
    const std::string text = words.substr(0, kNameBytes - 1);
    for (uint32_t i = 0; i < count_names; ++i) {
      if (text == names[i]) return i;
    }
    const uint32_t made = count_names < kMostNames ? count_names++ : kMostNames - 1;
    std::strcpy(names[made], text.c_str());
    return made;
  }
};

constexpr size_t kLedgerBytes = (sizeof(Ledger) + 4095) / 4096 * 4096;

class LedgerLock {
 public:
  explicit LedgerLock(Ledger& ledger) : ledger_(ledger) {
    if (pthread_mutex_lock(&ledger.mutex) != EOWNERDEAD) return;
    pthread_mutex_consistent(&ledger.mutex);
    ledger.shadow.count = 0;
  }
  LedgerLock(const LedgerLock&) = delete;
  LedgerLock& operator=(const LedgerLock&) = delete;
  ~LedgerLock() { pthread_mutex_unlock(&ledger_.mutex); }

 private:
  Ledger& ledger_;
};

/// A ledger in a file, mapped. A mapping of another process's may be counted as one that has the
/// memory.
class LedgerMapping {
 public:
  /// `file` is taken over. ledger() is nullptr if that does not work.
  LedgerMapping(int file, uint64_t offset) : file_(file), offset_(offset) {
    // It may be any file: one that is too short would be a bus error.
    struct stat status = {};
    const off_t end = static_cast<off_t>(offset + kLedgerBytes);
    if (fstat(file, &status) != 0 || status.st_size < end) return;
    void* const at = mmap(nullptr, kLedgerBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                          static_cast<off_t>(offset));
    if (at != MAP_FAILED) ledger_ = static_cast<Ledger*>(at);
  }
  LedgerMapping(const LedgerMapping&) = delete;
  LedgerMapping& operator=(const LedgerMapping&) = delete;
  ~LedgerMapping() {
    if (ledger_ != nullptr) munmap(ledger_, kLedgerBytes);
    close(file_);  // and with it the lock
  }

  Ledger* ledger() const { return ledger_; }
  bool count() const { return lock(F_OFD_SETLK, F_RDLCK) == F_RDLCK; }
  bool mapped_elsewhere() const { return lock(F_OFD_GETLK, F_WRLCK) != F_UNLCK; }

  /// For streams that have yet to look at it: mapped for good, and no longer counted.
  static void keep(std::unique_ptr<LedgerMapping> mapping) {
    mapping->lock(F_OFD_SETLK, F_UNLCK);
    static_cast<void>(mapping.release());
  }

 private:
  int lock(int command, short type) const {
    struct flock byte = {};
    byte.l_type = type;
    byte.l_whence = SEEK_SET;
    byte.l_start = static_cast<off_t>(offset_);
    byte.l_len = 1;
    return fcntl(file_, command, &byte) == 0 ? byte.l_type : -1;
  }

  const int file_;
  const uint64_t offset_;
  Ledger* ledger_ = nullptr;
};

/// A file of another process, or of this one, reopened; -1: access is denied, or it is gone.
inline int open_file_of(pid_t pid, int file) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(file);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

/// The ledgers of what this process exports. Not thread-safe.
class LedgerFile {
 public:
  static constexpr uint32_t kMost = 1024;

  LedgerFile() : file_(memfd_create("device-ledgers", MFD_CLOEXEC)) {
    if (file_ >= 0 && ftruncate(file_, static_cast<off_t>(kMost * kLedgerBytes)) != 0) {
      close(file_);
      file_ = -1;
    }
  }
  LedgerFile(const LedgerFile&) = delete;
  LedgerFile& operator=(const LedgerFile&) = delete;

  int file() const { return file_; }

  /// A free slot's number; kMost: there is none.
  uint32_t take() {
    if (free_.empty()) return used_ < kMost ? used_++ : kMost;
    const uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  static uint64_t offset_of(uint32_t slot) { return slot * uint64_t{kLedgerBytes}; }
  void give_back(uint32_t slot) { free_.push_back(slot); }
  /// A generation that no handle of this process has had.
  uint64_t next_generation() { return ++generation_; }

  /// No one uses the slot: of what was there before, only the memory that it took is left.
  static void clear(Ledger& ledger) {
    for (SharedFlag& flag : ledger.flags) {
      if (flag.end == 0) break;
      flag.end = 0;
      flag.clock.count = 0;
    }
    ledger.count_names = 0;
    ledger.shadow.count = 0;
    ledger.card.exported.count = 0;
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&ledger.mutex, &shared);
    pthread_mutexattr_destroy(&shared);
  }

 private:
  int file_;
  uint32_t used_ = 0;
  uint64_t generation_ = 0;
  std::vector<uint32_t> free_;
};

}  // namespace fastcomm::shim
