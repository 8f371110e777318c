#include "transport/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace fastcomm {
namespace {

constexpr int kNoQuota = std::numeric_limits<int>::max();

int affinity_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

int cores_of(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return kNoQuota;
  const long long cores = quota / period + (quota % period != 0 ? 1 : 0);
  return static_cast<int>(std::min<long long>(cores, kNoQuota));
}

/// By the files of either version in one folder; a quota that is "max" or -1 is none.
int cores_of(const std::string& folder) {
  long long quota = 0, period = 0;
  std::ifstream both(folder + "/cpu.max");
  if (both >> quota >> period) return cores_of(quota, period);
  std::ifstream first(folder + "/cpu.cfs_quota_us"), second(folder + "/cpu.cfs_period_us");
  if (first >> quota && second >> period) return cores_of(quota, period);
  return kNoQuota;
}

bool has_cpu(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

int quota_cores(const std::string& root, const std::string& membership) {
  int cores = kNoQuota;
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);) {  // "4:cpu,cpuacct:/a/b", "0::/a/b"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::vector<std::string> mounts;
    if (controllers.empty()) {
      mounts = {root};
    } else if (has_cpu(controllers)) {
      mounts = {root + "/" + controllers, root + "/cpu"};
    }
    for (const std::string& mount : mounts) {
      // In a container the mount may begin at the group itself: then only its root is there.
      std::string path = line.substr(second + 1);
      for (size_t end = path.size(); end != std::string::npos; end = path.rfind('/')) {
        path.resize(end);
        cores = std::min(cores, cores_of(mount + path));
      }
    }
  }
  return cores;
}

int usable_cores() {
  static const int cores =
      std::max(1, std::min(affinity_cores(), quota_cores("/sys/fs/cgroup", "/proc/self/cgroup")));
  return cores;
}

}  // namespace fastcomm
