// How much the caches of this machine hold, in bytes; what common processors have, where the system does not say.
#pragma once

#include <cstdint>

namespace fastcomm {

/// Of one core.
uint64_t level2_cache();

/// Of the cores that share it.
uint64_t level3_cache();

}  // namespace fastcomm
