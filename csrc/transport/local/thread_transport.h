// A group whose ranks are threads of one process, over ordinary memory.
//
// For the tests (one mapping, so ThreadSanitizer sees it) and for CPU slots of one process.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "transport/transport.h"

namespace fastcomm {

/// One Transport per rank of `size`, each with `scratch_bytes` of scratch. The groups share the
/// memory and may be destroyed in any order, from any thread.
std::vector<std::unique_ptr<Transport>> make_thread_transports(int size, size_t scratch_bytes);

}  // namespace fastcomm
