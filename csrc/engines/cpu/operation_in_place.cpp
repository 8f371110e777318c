// The part of an operation about tensors in shared memory: their places, and the way without slots.
#include <atomic>
#include <cstdint>
#include <memory>

#include "core/control.h"
#include "core/error.h"
#include "engines/cpu/operation.h"

namespace fastcomm {

void Operation::locate(const Call& call) {
  header_.where = kNotShared;
  if (row_ == nullptr || !row_->may_be_in_place(call.bytes())) return;
  const Reachable memory = row_->in_place->memory(call, peers_.size());
  if (memory.begin == nullptr) return;
  shared_bytes_ = memory.bytes;
  header_.where = peers_.locate(memory.begin, memory.bytes);
  header_.form = memory.form;
  if (header_.where == kNotShared) return;
  if (auto* one_shot = std::get_if<AllReduceOneShot>(&schedule_)) one_shot->is_shared = true;
}

bool Operation::poll_direct() {
  if (quitter_.load(std::memory_order_relaxed) >= 0) return false;
  uint32_t at = step() & ~kDirect;
  if (at == 0) {
    std::visit([&](const auto& schedule) { schedule.run(executor_, at); }, *direct_);
    if (find_quitter()) return false;
    executor_.publish(direct_base() + ++at);
  }
  const bool done = std::visit(
      [&](const auto& schedule) {
        return run_steps(schedule, executor_, direct_base(), at, [](uint32_t) { return true; });
      },
      *direct_);
  step_.store(at | kDirect, std::memory_order_relaxed);
  return done;
}

bool Operation::find_quitter() {
  // All loads of the peers' tensors before the looks at their control blocks. The counterpart is
  // the fence in Transport::wake_peers, after the mark and before the user gets the tensor back: if
  // a load saw the user's writes, the mark is seen. Then a sum is not published, and this rank does
  // not end.
  if (FC_LEFT_OUT(Control::kNoSecondLook)) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  for (int peer = 0; peer < peers_.size(); ++peer) {
    if (peer == peers_.rank() || !peers_.control_block(peer).gave_up(header_.sequence)) continue;
    quitter_.store(peer, std::memory_order_relaxed);
    return true;
  }
  return false;
}

bool Operation::read_headers() {
  check_headers();
  if (row_->in_place == nullptr || !any_shared()) return true;
  // One more step, in either case: ranks that have not staged do so, or all meet again.
  if (auto* one_shot = std::get_if<AllReduceOneShot>(&schedule_)) one_shot->stages_late = true;
  char* buffers[kMaxRanks];
  if (!reach_all(buffers)) return true;
  direct_ = std::make_unique<AnyDirect>(
      row_->in_place->schedule(schedule_, peers_.view(), header_, shared_bytes_, buffers));
  return false;
}

bool Operation::any_shared() const {
  for (int peer = 0; peer < peers_.size(); ++peer) {
    if (notice_of(peer).header.where != kNotShared) return true;
  }
  return false;
}

bool Operation::reach_all(char** buffers) const {
  for (int peer = 0; peer < peers_.size(); ++peer) {
    const CallHeader& theirs = notice_of(peer).header;
    if (theirs.where == kNotShared || theirs.form != header_.form) return false;
    buffers[peer] = peers_.reach(peer, theirs.where, shared_bytes_);
    if (buffers[peer] == nullptr) return false;
  }
  return true;
}

void Operation::quarantine() {
  // Before the header is out, no peer knows of the memory.
  if (header_.where == kNotShared || step() == 0) return;
  peers_.quarantine(header_.where, shared_bytes_);
}

}  // namespace fastcomm
