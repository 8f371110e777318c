#include "tensors/stream_ends.h"
#if defined(FC_DEVICES)
#include <algorithm>
#include <utility>

#include "core/beside_captures.h"
#include "tensors/captures.h"

namespace fastcomm {

void StreamEnds::mark(const c10::Stream& stream) {
  if (is_external(stream)) {  // its owner may have destroyed it
    unmarked_ = true;
    return;
  }
  if (capture_of(stream) != 0) {  // an event would become part of that capture
    captured_.push_back(stream);
    return;
  }
  c10::Event end(kAccelerator);
  end.record(stream);
  ends_.push_back(std::move(end));
}

void StreamEnds::add(const c10::Stream& stream) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    mark(stream);
  } catch (const std::exception&) {
    unmarked_ = true;
  }
}

bool StreamEnds::passed() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    const BesideCaptures others(device_);
    for (const c10::Stream& stream : std::exchange(captured_, {})) mark(stream);
    ends_.erase(std::remove_if(ends_.begin(), ends_.end(),
                               [](const c10::Event& end) { return end.query(); }),
                ends_.end());
    if (!ends_.empty() || !captured_.empty()) return false;
    if (!unmarked_) return true;
    if (is_capture_known(device_)) return false;
    c10::impl::VirtualGuardImpl(kAccelerator)
        .synchronizeDevice(static_cast<c10::DeviceIndex>(device_));
    unmarked_ = false;
  } catch (const std::exception&) {
    // The device is lost, and does nothing any more.
  }
  return true;
}

}  // namespace fastcomm
#endif
