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

int number_of(const CoreSet& set) {
  int number = 0;
  for (const uint64_t word : set) number += __builtin_popcountll(word);
  return number;
}

bool is_within(const CoreSet& part, const CoreSet& whole) {
  for (size_t i = 0; i < part.size(); ++i) {
    if ((part[i] & ~whole[i]) != 0) return false;
  }
  return true;
}

int affinity_cores() {
  const int number = number_of(own_cores());
  return number != 0 ? number : static_cast<int>(std::thread::hardware_concurrency());
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

int quota_cores() {
  static const int cores = quota_cores("/sys/fs/cgroup", "/proc/self/cgroup");
  return cores;
}

int usable_cores() {
  static const int cores = std::max(1, std::min(affinity_cores(), quota_cores()));
  return cores;
}

CoreSet own_cores() {
  CoreSet cores{};
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (size_t core = 0; core < 64 * cores.size(); ++core) {
    if (CPU_ISSET(core, &set)) cores[core / 64] |= uint64_t{1} << core % 64;
  }
  return cores;
}

bool outnumber_cores(const std::vector<CoreSet>& ranks) {
  std::vector<CoreSet> places(ranks);
  CoreSet all{};
  for (const CoreSet& rank : ranks) {
    for (size_t i = 0; i < all.size(); ++i) all[i] |= rank[i];
  }
  places.push_back(all);
  return std::any_of(places.begin(), places.end(), [&](const CoreSet& place) {
    const auto there = std::count_if(ranks.begin(), ranks.end(), [&](const CoreSet& rank) {
      return number_of(rank) != 0 && is_within(rank, place);
    });
    return number_of(place) != 0 && there > number_of(place);
  });
}

}  // namespace fastcomm
