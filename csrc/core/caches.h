// Sizes of this machine's caches in bytes; those of common processors if the system does not say.
#pragma once

#include <cstdint>

namespace fastcomm {

/// Per core.
uint64_t level2_cache();

/// Per group of cores that share it.
uint64_t level3_cache();

}  // namespace fastcomm
