// torch's flight recorder: the latest calls of this process, which a dump shows when ranks hang or
// fail. torch's own instance is hidden in its library; this is another one of the same class, with
// the same variables, format and writer. The same look at groups that have failed serves the
// records that FASTCOMM_DUMP keeps (record_dump.h).
#pragma once

#include <c10/core/ScalarType.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"

namespace fastcomm {

/// A call in the recorder's words.
struct RecordedCall {
  struct Tensors {
    std::vector<std::vector<int64_t>> sizes;
    std::vector<c10::ScalarType> types;
  };
  std::string name;  // "nccl:all_reduce"
  Tensors inputs{}, outputs{};
  Milliseconds timeout{};
  bool is_message = false;
};

/// The entry of a call; by default none. Self-contained, for engines from outside.
class RecordedEntry {
 public:
  using End = void (*)(size_t id, bool well) noexcept;
  RecordedEntry() = default;
  RecordedEntry(size_t id, End end) : id_(id), end_(end) {}

  /// The call has ended; one that has failed stays "scheduled". Nothing if newer calls have taken
  /// the entry's place.
  void end(bool well) const noexcept {
    if (end_ != nullptr) end_(id_, well);
  }

 private:
  size_t id_ = 0;
  End end_ = nullptr;
};

/// What the recorder knows of one group, as long as that lives. Thread-safe.
class RecordedGroup {
 public:
  /// `in_trouble` tells that the group was given up, here or by a peer; it waits for nobody, and is
  /// asked on the recorder's thread until close(). `token` is the same on all ranks. nullptr if
  /// nothing asks for either kind of dump.
  static std::unique_ptr<RecordedGroup> create(int rank, uint64_t token,
                                               std::vector<uint64_t> members,
                                               std::function<bool()> in_trouble);
  ~RecordedGroup();
  /// Whether there has ever been one in this process: a look at one word.
  static bool any() noexcept { return any_.load(std::memory_order_relaxed); }
  RecordedGroup(const RecordedGroup&) = delete;
  RecordedGroup& operator=(const RecordedGroup&) = delete;

  /// True if calls have entries.
  bool has_entries() const { return has_entries_; }
  /// Never raises. `name` and `description` are the group's, which has none yet when it is made.
  RecordedEntry begin(const RecordedCall& call, const std::string& name,
                      const std::string& description) noexcept;
  /// The group ends; `failing` because of an error of the program. Idempotent.
  void close(bool failing) noexcept;

 private:
  RecordedGroup(std::vector<uint64_t> members, std::function<bool()> in_trouble);

  // Relaxed: who issues a call has got its group from the thread that made it.
  static inline std::atomic<bool> any_{false};
  const size_t id_;
  const std::vector<uint64_t> members_;
  const std::function<bool()> in_trouble_;
  const bool has_entries_;
  std::atomic<size_t> collectives_{0}, messages_{0}, calls_{0};
  std::atomic<bool> known_{false}, closed_{false};  // to the recorder; by close()
};

/// The entries, pickled as torch does it. Stack traces need the GIL, which the caller may not hold.
/// Nothing while nothing is recorded.
std::optional<std::string> flight_recorder_dump(bool with_stacks, bool only_active);

/// Writes a dump where torch's writer puts it; returns the name of the file. Nothing as above.
std::optional<std::string> write_flight_recorder();

/// For the end of the interpreter, without the GIL: a dump that is due, and no thread had time for.
void finish_flight_recorder() noexcept;

}  // namespace fastcomm
