// A trial before a group serves anyone: sums of known numbers on all devices at once, by way of
// every rank's window, with every bit checked by each host. It finds links that lose writes or give
// other bytes. The same for memory that a group adds for tensors, before any lies there.
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
  /// Makes this rank's numbers, in the order of `stream`; in `memory` of the device, if given:
  /// kMostBytes, of which the sums use enough to be done in place. The arguments outlive it. Raises
  /// Error or c10::Error if there is no memory.
  Trial(PeerCollectives& collectives, Communicator& beside, const c10::Stream& stream,
        uint32_t* abort_word, char* memory = nullptr);
  static constexpr uint64_t kMostBytes = uint64_t{16} << 20;

  /// Collective. Each wait of a device is bounded by `limit_ns`, and by 20 s. Raises
  /// Error(kSystem): a launch or a meeting failed, or numbers are wrong. Either way, nothing is at
  /// work on this rank's device afterwards.
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
