// Whether everything that streams are given is ordered where it has to be: determined as it is
// given, from who waits for what, and so the same in every run, whatever the timing.
//
//   submit  -> the work is after what its stream was given before and what the host has waited for
//   record  -> the event knows what its stream knows
//   wait    -> the stream knows what the event knows
//   synchronise, a query that says "done"  -> the host knows it, and whatever it submits from then
//                                          on
// Work names the bytes that it reads and writes; two uses of a byte, one of them a write, that are
// not so ordered are a hazard: it is noted, with both uses in words, and the program goes on.
//
// Where flags in memory order work (core/hd.h), the work does not name the bytes that it orders
// this way. Any host thread may call; threads of streams never do, so that the mutex creates no
// order between streams that ThreadSanitizer would then believe. (The exception is to note what
// shim/shared_memory.h has found between processes.)
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "shim/shadow.h"

namespace fastcomm::shim {

class Order {
 public:
  static Order& get() {
    static Order& order = *new Order;
    return order;
  }

  Actor new_actor() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ++actors_;
  }

  /// `actor` is given work; `stream` is its clock.
  void submit(Actor actor, Clock& stream, const std::vector<Access>& accesses,
              const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    stream.join(host_);
    const Step step{actor, stream.tick(actor), std::make_shared<const std::string>(what)};
    for (const Access& access : accesses) {
      const char* const does = access.write ? "writes" : "reads";
      if (shadow_.is_retired(access)) {
        note(concat(what, " ", does, " ", access.bytes, " bytes at ", access.begin,
                    ", which have been freed"));
      }
      shadow_.touch(access, step, stream, reporter(what, does));
    }
  }
  void record(const Clock& stream, Clock& event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    event = stream;
    event.join(host_);
  }
  void wait(Clock& stream, const Clock& event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    stream.join(event);
  }
  Clock now(const Clock& stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stream;
  }
  void host_saw(const Clock& clock) {
    const std::lock_guard<std::mutex> lock(mutex_);
    host_.join(clock);
  }

  /// The memory is given back: its next user may do anything with it, at once.
  void freed(const void* memory, uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    shadow_.forget(reinterpret_cast<uintptr_t>(memory), bytes, host_,
                   reporter("the host", "frees"));
  }
  /// An allocator has the whole memory back, and revives it before it is used again.
  void retire(const void* memory, uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    shadow_.retire(reinterpret_cast<uintptr_t>(memory), bytes);
  }
  void revive(const void* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    shadow_.revive(reinterpret_cast<uintptr_t>(memory));
  }

  /// Whether all uses of the memory are ones that the host has waited for.
  bool settled(const void* memory, uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return shadow_.settled(reinterpret_cast<uintptr_t>(memory), bytes, host_);
  }

  void add_hazards(std::vector<std::string> found) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::string& text : found) hazards_.push_back(std::move(text));
  }
  /// What was found since the last call; the first kMostHazards of it.
  std::vector<std::string> take_hazards() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(hazards_, {});
  }

 private:
  static constexpr size_t kMostHazards = 100;

  Shadow::Report reporter(const std::string& what, const char* does) {
    return [this, what, does](const Step& earlier, bool wrote, uintptr_t begin, uint64_t bytes) {
      note(concat(what, " ", does, " ", bytes, " bytes at ", begin, ", which ", *earlier.what, " ",
                  wrote ? "writes" : "reads", ", and nothing orders one after the other"));
    };
  }
  void note(std::string text) {
    if (hazards_.size() < kMostHazards) hazards_.push_back(std::move(text));
  }

  std::mutex mutex_;
  Actor actors_ = kHost;  // so far
  Clock host_;
  Shadow shadow_;
  std::vector<std::string> hazards_;
};

}  // namespace fastcomm::shim
