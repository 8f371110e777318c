// Number of cores that this process may use.
#pragma once

#include <string>

namespace fastcomm {

/// The smaller of the affinity mask and the CPU quota of the process's control group, at least 1.
/// Read once.
int usable_cores();

/// Cores by the smallest quota of a control group, version 1 or 2, and of those around it; a large
/// number where there is none. `root` is where they are mounted, `membership` the file that names
/// the process's.
int quota_cores(const std::string& root, const std::string& membership);

}  // namespace fastcomm
