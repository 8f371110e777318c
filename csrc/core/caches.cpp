#include "core/caches.h"

#include <fstream>
#include <string>

namespace fastcomm {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = kKiB * kKiB;

/// Reads the caches of the first core. sysconf() is not asked: for the third level it may report
/// the total of all cores of a processor, even if a virtual machine has only a few of them.
uint64_t cache_of_level(int level, uint64_t otherwise) {
  for (int index = 0; index < 8; ++index) {
    const std::string place =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    int this_level = 0;
    std::string type;
    uint64_t size = 0;
    char unit = 0;
    std::ifstream(place + "level") >> this_level;
    std::ifstream(place + "type") >> type;
    if (this_level != level || type == "Instruction") continue;
    std::ifstream(place + "size") >> size >> unit;
    if (size != 0 && (unit == 'K' || unit == 'M')) return size * (unit == 'K' ? kKiB : kMiB);
  }
  return otherwise;
}

}  // namespace

uint64_t level2_cache() {
  static const uint64_t bytes = cache_of_level(2, kMiB);
  return bytes;
}

uint64_t level3_cache() {
  static const uint64_t bytes = cache_of_level(3, 32 * kMiB);
  return bytes;
}

}  // namespace fastcomm
