// Synchronous calls of a group: short ones without an operation, all others through the queue.
#include "core/call_site.h"
#include "core/env.h"
#include "engines/cpu/communicator.h"
#include "engines/cpu/spin_for.h"
#include "transport/fork.h"

namespace fastcomm {

std::shared_ptr<Operation> Communicator::run(const Call& call, Milliseconds timeout,
                                             const std::function<void()>& interrupted) {
  if (const auto short_call = short_of(call)) {
    if (auto ended = run_short(*short_call, call.record, timeout, interrupted)) return ended;
  }
  return run_queued(call, timeout, interrupted);
}

std::shared_ptr<Operation> Communicator::run(const ShortCall& call, const CallRecord& record,
                                             Milliseconds timeout,
                                             const std::function<void()>& interrupted) {
  if (auto ended = run_short(call, record, timeout, interrupted)) return ended;
  return run_queued(call.whole(record), timeout, interrupted);
}

std::shared_ptr<Operation> Communicator::run_queued(const Call& call, Milliseconds timeout,
                                                    const std::function<void()>& interrupted) {
  auto operation = admit(call, timeout, nullptr);
  if (!operation->done()) wait(*operation, Deadline::max(), interrupted);
  return operation;
}

std::shared_ptr<Operation> Communicator::run_short(const ShortCall& call, const CallRecord& record,
                                                   Milliseconds timeout,
                                                   const std::function<void()>& interrupted) {
  // Both ask for what only an operation keeps.
  if (environment().call_sites || span_sink() != nullptr || forked_from_endpoint()) return nullptr;
  std::shared_ptr<Operation> late, ended;
  std::string no_memory;
  {
    const std::unique_lock<std::mutex> driving(drive_, std::try_to_lock);
    if (!driving || !short_.takes(call)) return nullptr;
    // The operation finds it again, and can tell it.
    int who_left = -1;
    if (given_up_before({op_kind_name(call.kind), sequence_}, &who_left) || who_left >= 0) {
      return nullptr;
    }
    if (ended_ == nullptr) {
      ended_ = std::make_shared<Operation>(call.whole({}), *peers_, traits_, 0, timeout);
      ended_->finish(nullptr);
    }
    uint64_t sequence;
    {
      // From here on another thread may queue an operation behind this call. Nobody polls it before
      // drive_ is free.
      const std::lock_guard<std::mutex> lock(state_);
      if (failure_ != nullptr || !queue_.empty()) return nullptr;
      sequence = sequence_++;
    }
    if (try_short(call, record, sequence)) {
      base_ += ShortCalls::kFirstStep;
      ended = ended_;
    } else {
      try {
        const std::lock_guard<std::mutex> lock(state_);
        late = made(call.whole(record), sequence, timeout, "");
        late->resume(base_, ShortCalls::kFirstStep);
        queue_.push_front(late);
        queued_.store(queue_.size(), std::memory_order_relaxed);
      } catch (const std::exception& error) {  // no memory: the peers must not wait for this rank
        no_memory = error.what();
      }
    }
  }
  const HandOver later(*this);
  if (!no_memory.empty()) {
    abort(no_memory);
    throw Error(ErrorCode::kSystem, where(op_kind_name(call.kind)) + no_memory);
  }
  if (ended != nullptr) {
    poll_messages();
    return ended;
  }
  wait_until_done(*late, Deadline::max(), interrupted);
  return late;
}

bool Communicator::try_short(const ShortCall& call, const CallRecord& record, uint64_t sequence) {
  record.number(sequence, static_cast<uint8_t>(short_.algorithm()));
  short_.begin(call, sequence, base_);
  bool arrived = short_.arrived(base_);
  const auto look = [&] { return arrived = short_.arrived(base_); };
  if (!arrived) spin_for(policy_.spin, look, [&] { return short_.crowded(base_); });
  if (!arrived || !short_.are_alike()) return false;
  record.start();
  short_.end(call);
  return true;
}

}  // namespace fastcomm
