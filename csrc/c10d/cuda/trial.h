// Before a group serves anybody: sums of known numbers on all devices at once, by way of everybody's
// window, of which each host looks at each bit. Links that lose writes or give other bytes are found here.
// The same of memory that a group adds for tensors, before any lies there.
//
// Only in builds with FC_DEVICES.
#pragma once

#include "tensors/accelerator.h"
#if defined(FC_DEVICES)
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <vector>

#include "engines/cpu/communicator.h"
#include "engines/cuda/peer_collectives.h"

namespace fastcomm {

class Trial {
 public:
  /// Makes this rank's numbers, in the order of `stream`; in `memory` of the device, if given: kMostBytes, of which
  /// the sums use what makes them use it in place. What is passed outlives it. Raises Error or c10::Error: there is no
  /// memory.
  Trial(PeerCollectives& collectives, Communicator& beside, const c10::Stream& stream,
        uint32_t* abort_word, char* memory = nullptr);
  static constexpr uint64_t kMostBytes = uint64_t{16} << 20;

  /// Collective. Each wait of a device is bounded by `limit_ns`, and by 20 s. Raises Error(kSystem): a launch
  /// or a meeting failed, or numbers are wrong. Whatever comes of it, nothing is at work on this rank's
  /// device afterwards.
  void run(int channel, uint64_t limit_ns);

 private:
  /// Waits for the stream; tells devices to give up when ranks are gone.
  void wait();

  PeerCollectives& collectives_;
  Communicator& beside_;
  const c10::Stream stream_;
  uint32_t* const abort_word_;
  int64_t elements_;  // of a sum
  std::vector<at::Tensor> sums_;
};

}  // namespace fastcomm
#endif
