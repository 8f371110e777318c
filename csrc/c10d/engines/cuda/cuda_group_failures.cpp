// The part of a group on devices about operations under way: their end, and their failures and the
// group's.
#include "c10d/engines/cuda/cuda_group.h"
#if defined(FC_DEVICES)
#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "c10d/life/exception.h"
#include "core/beside_captures.h"
#include "core/call_site.h"
#include "core/env.h"
#include "engines/cuda/failure_text.h"

namespace fastcomm {
namespace {

ErrorCode code_of_wait(WaitFailure why) {
  switch (why) {
    case WaitFailure::kTimeout:
      return ErrorCode::kTimeout;
    case WaitFailure::kMismatch:
      return ErrorCode::kMismatch;
    default:
      return ErrorCode::kPoisoned;
  }
}

const char* advice(WaitFailure why) {
  return why == WaitFailure::kTimeout
             ? ". Look what the other ranks are doing, or raise timeout=; results that had not "
               "been there are NaN; this process group cannot be used any more"
             : ". Results that had not been there are NaN; this process group cannot be used any "
               "more, create a new one";
}

}  // namespace

std::exception_ptr CudaGroup::noted() const {
  const std::lock_guard<std::mutex> lock(noting_);
  return failure_;
}

std::exception_ptr CudaGroup::note(const std::exception_ptr& error) {
  const std::lock_guard<std::mutex> lock(noting_);
  if (failure_ == nullptr) {
    failure_ = error;
    failed_.store(true, std::memory_order_release);
    // Relaxed, since it announces no data: kernels that wait give up.
    store_relaxed(abort_word_.get(), 1u);
  }
  return failure_;
}

std::exception_ptr CudaGroup::give_up(const char* operation, ErrorCode code,
                                      const std::string& what, int peer,
                                      std::optional<uint64_t> number) {
  if (failed_.load(std::memory_order_acquire)) return noted();
  return note(beside_->failed(operation, code, what, peer, number));
}

std::exception_ptr CudaGroup::recorded() {
  for (int channel = 0; channel < kChannels; ++channel) {
    const MeetingRecord& record = collectives_->record(channel);
    // Acquire: the rest of the record is complete once this is there.
    const auto why = static_cast<WaitFailure>(load_flag(&record.wait.failure));
    if (why == WaitFailure::kNone) continue;
    const auto kind = static_cast<OpKind>(record.own.kind);
    if (why == WaitFailure::kPeerFailed || why == WaitFailure::kAborted) {
      // Its own host knows the reason, and reports it.
      std::optional<Deadline> since;
      for (const Deadline end = Clock::now() + Milliseconds(1000); Clock::now() < end;) {
        const auto told = beside_->stalled(op_kind_name(kind), since, 0, record.own.sequence);
        if (told != nullptr) return note(told);
        if (const auto told = beside_->failure()) return note(told);
        std::this_thread::sleep_for(Milliseconds(1));
      }
    }
    const std::string site = channel == kEager ? site_of(record.own.sequence) : "";
    const auto [text, peer] = describe_failure(record, beside_->rank(), beside_->size(), site);
    return give_up(op_kind_name(kind), code_of_wait(why), text + advice(why), peer,
                   record.own.sequence);
  }
  return nullptr;
}

std::string CudaGroup::site_of(uint64_t number) const {
  const std::lock_guard<std::mutex> lock(flying_);
  for (const FlightPtr& flight : flights_) {
    if (flight->about.number == number) return flight->about.site;
  }
  return "";
}

std::exception_ptr CudaGroup::failure() {
  if (failed_.load(std::memory_order_acquire)) return noted();
  if (const auto error = beside_->failure()) return note(error);
  return recorded();
}

std::exception_ptr CudaGroup::failed_before(const char* operation) {
  auto error = failure();
  if (error == nullptr) {
    // Its kernels may find all that they need, of a peer that has given the group up since.
    error = beside_->failure_before(operation);
    if (error == nullptr) return nullptr;
    note(error);
  }
  tell();
  return come_after(error, operation);
}

FlightPtr CudaGroup::oldest() const {
  const std::lock_guard<std::mutex> lock(flying_);
  return flights_.empty() ? nullptr : flights_.front();
}

bool CudaGroup::is_over(Flight& flight) {
  if (flight.ended_well() || flight.about.capture != 0)
    return true;  // no host sees what is replayed
  bool passed = false;
  if (const auto error = caught([&] {
        const BesideCaptures others(device_);
        passed = flight.passed();
      })) {
    flight.set_over(
        give_up(flight.name(), ErrorCode::kSystem, what_of(error), -1, flight.about.number));
    return true;  // a lost device does nothing any more
  }
  // After that, since the failure of an operation is recorded before it has passed.
  if (passed) flight.set_over(failure());
  return passed;
}

std::vector<FlightPtr> CudaGroup::reap() {
  std::vector<FlightPtr> over;
  while (const FlightPtr flight = oldest()) {
    if (!is_over(*flight)) break;
    over.push_back(flight);
    const std::lock_guard<std::mutex> lock(flying_);
    if (!flights_.empty() && flights_.front() == flight) flights_.pop_front();
  }
  return over;
}

std::optional<CudaGroup::Waiting> CudaGroup::oldest_waiting() const {
  const std::lock_guard<std::mutex> lock(flying_);
  if (flights_.empty()) return std::nullopt;
  const Flight& flight = *flights_.front();
  return Waiting{flight.name(), flight.about.number, flight.since};
}

bool CudaGroup::look() {
  ++looks_;  // before a flight is taken out: a thread that finds none under way sees this
  const std::vector<FlightPtr> over = reap();
  ++seen_;
  const bool under_way = look_at(oldest_waiting(), kLeaverGrace);
  const FlightPtr waiting = oldest();
  if (waiting != nullptr && !failed_.load(std::memory_order_acquire)) warn_of_wait(*waiting);
  // Last: tensors may be Python's, and a thread may hold Python's lock while it waits for a device
  // that waits for a rank that is gone.
  for (const FlightPtr& flight : over) flight->let_go();
  --looks_;
  return under_way;
}

bool CudaGroup::look_at_host() {
  if (FC_LEFT_OUT(Control::kNoHostLook)) return false;
  const std::optional<Waiting> waiting = oldest_waiting();
  if (!waiting && !captures_) {
    standstill_.reset();
    return false;
  }
  if (standstill_.lasts(seen_, Clock::now()) < kStuck) return true;
  // Nobody can tell whether the operation is over. That a rank has left in order may be because it
  // is, so this is taken for a failure only where the driver would otherwise not return.
  return look_at(waiting, kStopGrace);
}

bool CudaGroup::look_at(const std::optional<Waiting>& waiting, Milliseconds grace) {
  if (failure() != nullptr) return waiting.has_value();
  std::exception_ptr why;
  {
    const std::lock_guard<std::mutex> lock(looking_);
    if (!waiting && !captures_) {
      stalled_since_.reset();
      return false;
    }
    const bool late = waiting && Clock::now() - waiting->since > grace;
    const char* const name = waiting ? waiting->name : op_kind_name(OpKind::kOther);
    std::optional<uint64_t> number;
    if (waiting) number = waiting->number;
    why = beside_->stalled(name, stalled_since_, late ? ~uint64_t{0} : 0, number);
  }
  if (why != nullptr) note(why);
  return true;
}

void CudaGroup::warn_of_wait(Flight& flight) {
  flight.warning.look(Clock::now(), beside_->label(), [&](Clock::duration so_far) {
    return message_front(beside_->rank(), beside_->size(), -1, flight.name(), flight.about.number) +
           concat(
               waited(so_far), " for its device", at_site(flight.about.site),
               ": a rank has not called it, or what the streams were given before it takes long. "
               "See what the other ranks are doing");
  });
}

bool CudaGroup::drain(const std::function<void()>& interrupted, Deadline until) {
  std::optional<Deadline> limit;
  for (;;) {
    look();  // with or without such a thread
    if (oldest() == nullptr) return true;
    if (interrupted) interrupted();
    if (Clock::now() > until) return false;
    if (!limit && failure() != nullptr) limit = Clock::now() + kStopGrace;
    if (limit && Clock::now() > *limit) return false;
    std::this_thread::sleep_for(Milliseconds(1));
  }
}

}  // namespace fastcomm
#endif
