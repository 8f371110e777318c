// The devices' memory: the execution shim's, hidden from whoever takes an address on a device for
// one on the host. Other processes can map it (tests/shim/ipc.h).
#pragma once

#include "shim/arena.h"

namespace sim {

struct Arena {
  static fastcomm::shim::Arena& get() {
    constexpr size_t kBytes = size_t{1} << 35;  // addresses; memory is taken where it is touched
    return fastcomm::shim::Arena::get({kBytes, /*imports=*/kBytes, /*hidden=*/true});
  }
};

}  // namespace sim
