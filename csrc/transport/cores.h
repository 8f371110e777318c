// Cores that this process may use, and whether ranks have enough of them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace fastcomm {

/// The smaller of the affinity mask and the CPU quota of the process's control group, at least 1.
/// Read once.
int usable_cores();

/// Cores by their numbers: bit n % 64 of word n / 64.
using CoreSet = std::array<uint64_t, 16>;

/// The cores on which this thread may run; none if the system does not tell.
CoreSet own_cores();

/// True if ranks outnumber the cores on which they may run (a set for each, which is left out if it
/// is empty): all together, or those that share the cores of one of them.
bool outnumber_cores(const std::vector<CoreSet>& ranks);

/// As many cores as the quota of this process's control group allows. Read once.
int quota_cores();

/// Cores by the smallest quota of a control group, version 1 or 2, and of those around it; a large
/// number where there is none. `root` is where they are mounted, `membership` the file that names
/// the process's.
int quota_cores(const std::string& root, const std::string& membership);

}  // namespace fastcomm
