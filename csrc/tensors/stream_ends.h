// Waits for the work that streams have been given, without a call that a capture would not survive.
//
// Only in builds with FC_DEVICES.
#pragma once

#include "tensors/accelerator.h"
#if defined(FC_DEVICES)
#include <c10/core/Event.h>

#include <mutex>
#include <vector>

namespace fastcomm {

/// Streams of one device. Thread-safe.
class StreamEnds {
 public:
  explicit StreamEnds(int device) : device_(device) {}

  /// Adds all work that the stream has been given so far. Raises nothing: a lost device has none.
  void add(const c10::Stream& stream) noexcept;
  /// True if the device has done all of it. Never waits for the device, but for the ends of streams
  /// that are external (captures.h) or could not be marked; then only while no capture is known.
  bool passed() noexcept;

 private:
  /// Marks the end; with mutex_.
  void mark(const c10::Stream& stream);

  const int device_;
  std::mutex mutex_;
  std::vector<c10::Event> ends_;
  std::vector<c10::Stream> captured_;  // to be marked when their captures are over
  bool unmarked_ = false;              // there is work that no event tells the end of
};

}  // namespace fastcomm
#endif
