#include "transport/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

namespace fastcomm {
namespace {

int affinity_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

/// Cores by the quota of control group version 2 as seen in a container, or a large number.
int quota_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  long long period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 1 << 20;
  const long long microseconds = std::atoll(quota.c_str());
  return static_cast<int>(std::max(1LL, (microseconds + period - 1) / period));
}

}  // namespace

int usable_cores() {
  static const int cores = std::max(1, std::min(affinity_cores(), quota_cores()));
  return cores;
}

}  // namespace fastcomm
