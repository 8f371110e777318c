// Number of cores that this process may use.
#pragma once

namespace fastcomm {

/// The smaller of the affinity mask and the CPU quota of the process's cgroup, at least 1. Read
/// once.
int usable_cores();

}  // namespace fastcomm
