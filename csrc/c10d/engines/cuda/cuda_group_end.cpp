// The part of a group on devices about its end: what nothing uses any more is freed, beside
// captures of other threads.
#include "c10d/engines/cuda/cuda_group.h"
#if defined(FC_DEVICES)
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>

#include <thread>
#include <utility>

#include "c10d/life/exception.h"
#include "core/beside_captures.h"
#include "tensors/captures.h"
#include "transport/fork.h"

namespace fastcomm {

CudaGroup::~CudaGroup() {
  if (!forked_from_endpoint()) leave({});
  if (forked_from_endpoint() || keeps_) {
    static_cast<void>(collectives_.release());
    static_cast<void>(new std::shared_ptr<GroupPool>(std::move(pool_)));
    static_cast<void>(windows_.release());
    static_cast<void>(abort_word_.release());
    static_cast<void>(new std::deque<FlightPtr>(std::move(flights_)));  // and their tensors
    return;
  }
  try {
    // Any thread may be the last, while another one captures.
    const BesideCaptures others(device_);
    collectives_.reset();
    pool_.reset();
    windows_.reset();
    abort_word_.reset();
  } catch (const std::exception&) {
    // The device is lost, and its memory with it.
  }
}

std::string CudaGroup::await_captures(const std::function<void()>& interrupted) {
  if (!captures_) return "";
  // A wait for the device would make a capture on it fail.
  for (const Deadline end = Clock::now() + kPatience; is_capture_known(device_);) {
    if (is_capturing(device_)) return "the current stream of its device is captured into a graph";
    if (Clock::now() > end) return "a stream of its device is captured into a graph";
    if (interrupted) interrupted();
    std::this_thread::sleep_for(Milliseconds(1));
  }
  return "";
}

void CudaGroup::await_replays() {
  if (!captures_) return;
  const BesideCaptures others(device_);
  c10::impl::VirtualGuardImpl(kAccelerator)
      .synchronizeDevice(static_cast<c10::DeviceIndex>(device_));
}

void CudaGroup::leave(const std::function<void()>& interrupted) {
  {
    const std::lock_guard<std::mutex> lock(submitting_);
    if (std::exchange(left_, true)) return;
    last_.reset();
    last_captured_.reset();
  }
  std::string why_not;  // nothing is freed
  const auto finish = [&](const std::function<void()>& interrupted) {
    why_not = drain(interrupted) ? "" : "it does not end what it was given";
    if (why_not.empty()) why_not = await_captures(interrupted);
    if (!why_not.empty()) return;
    if (const auto lost = caught([&] { await_replays(); }))
      give_up("none", ErrorCode::kSystem, what_of(lost));
  };
  std::exception_ptr raised;
  try {
    finish(interrupted);
  } catch (...) {  // Ctrl-C
    raised = std::current_exception();
    give_up("none", ErrorCode::kPoisoned,
            concat("rank ", beside_->rank(), " was interrupted while it left"));
    finish({});
  }
  if (why_not.empty()) {
    if (const auto lost = caught([&] {
          const BesideCaptures others(device_);
          if (pool_ != nullptr) pool_->retire(beside_->peers_are_gone());
          windows_->retire(beside_->peers_are_gone());
        }))
      give_up("none", ErrorCode::kSystem, what_of(lost));
  } else {  // what may still run uses them
    LOG(WARNING) << "fastcomm: memory of a process group on device " << device_
                 << " stays allocated: " << why_not;
    keeps_ = true;
  }
  if (raised != nullptr) std::rethrow_exception(raised);
}

}  // namespace fastcomm
#endif
