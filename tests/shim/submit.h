// Submission of work to a stream, with the bytes that it uses. Their order is checked when it is
// submitted (shim/order.h) and, in memory that processes share, also when it runs
// (shim/shared_memory.h).
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "shim/runtime.h"
#include "shim/shared_memory.h"

namespace fastcomm::shim {

/// Returns `work` behind a check of the order of its uses of memory that processes share. `words`
/// names it.
template <class Work>
std::function<void()> shared_work(const Stream& stream, const std::vector<Access>& accesses,
                                  const std::string& words, Work work) {
  struct Use {
    const char* address;
    uint64_t bytes;
    bool write;
  };
  std::vector<Use> uses;
  for (const Access& access : accesses) {
    if (access.spoils) continue;
    const char* const there = Runtime::get().on_host(reinterpret_cast<void*>(access.begin));
    if (SharedMemories::find(there) != nullptr) uses.push_back({there, access.bytes, access.write});
  }
  if (stream.actor > kMostStreams) throw std::length_error("shim: too many streams for a clock");
  const Worker worker = stream_worker(process_number(), stream.actor);
  return [work, uses, words, worker, skip = next_skip, host = WideHost::get().now(),
          progress = stream.progress] {
    const uint64_t launch = ++progress->launch;
    progress->clock.join(host);
    // number() adds 1 to the phase.
    Executing self{progress->clock, worker, worker, launch, kWholeLaunch - 1, &words};
    executing = &self;
    if (skip == nullptr || *skip == 0) {
      for (const Use& use : uses) touches(use.address, use.bytes, use.write);
    }
    work();
    executing = nullptr;
    progress->clock = std::move(self.clock);
    progress->clock.learn(worker, work_number(launch, kWholeLaunch));
  };
}

/// Runs `work` in a stream of the current device, or in the caller where there are no streams.
/// `what` names the work, and `accesses` are the bytes that it uses.
template <class Work>
cudaError_t submit(cudaStream_t stream, const char* what, std::vector<Access> accesses, Work work) {
  if (Runtime::get().empty.load(std::memory_order_relaxed)) return cudaSuccess;
  Stream* const target = Runtime::get().resolve(stream);
  if (target == nullptr) {
    work();
    return cudaSuccess;
  }
  need_context();
  if (target->device() != current_device) return fail(cudaErrorInvalidResourceHandle);
  std::string words = concat(what, " (device ", target->device(), ", stream ", target->actor, ")");
  if (target->capture != nullptr) {
    if (target->capture->invalid) return fail(cudaErrorStreamCaptureInvalidated);
    target->capture->add(target,
                         {std::move(work), std::move(accesses), std::move(words), next_skip});
    return cudaSuccess;
  }
  Order::get().submit(target->actor, target->clock, accesses, words);
  if (SharedMemories::any()) {
    target->enqueue(shared_work(*target, accesses, words, std::move(work)));
  } else {
    target->enqueue(std::move(work));
  }
  return cudaSuccess;
}

inline Access reads(const void* memory, uint64_t bytes) {
  return {reinterpret_cast<uintptr_t>(memory), bytes, false};
}
inline Access writes(const void* memory, uint64_t bytes) {
  return {reinterpret_cast<uintptr_t>(memory), bytes, true};
}

}  // namespace fastcomm::shim
