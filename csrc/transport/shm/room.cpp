#include "transport/shm/room.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace fastcomm {
namespace {

uint64_t limit_of(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return kNoLimit;
  return limit.rlim_cur == RLIM_INFINITY ? kNoLimit : limit.rlim_cur;
}

}  // namespace

uint64_t address_space_left() {
  const uint64_t limit = limit_of(RLIMIT_AS);
  uint64_t mapped = 0;  // pages
  if (limit == kNoLimit || !(std::ifstream("/proc/self/statm") >> mapped)) return limit;
  const uint64_t used = mapped * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return limit - std::min(limit, used);
}

uint64_t first_room(uint64_t most) {
  const uint64_t left = address_space_left();
  // A quarter: half is for all segments of a group (room_for_each), which has two ranks or more.
  const uint64_t room = std::min(left == kNoLimit ? left : left / 4, limit_of(RLIMIT_FSIZE));
  return std::min(most, std::max(room, kLeastRoom));
}

uint64_t room_for_each(int size, uint64_t own) {
  const uint64_t left = address_space_left();
  return left == kNoLimit ? left
                          : std::max((left + own) / 2 / static_cast<uint64_t>(size), kLeastRoom);
}

}  // namespace fastcomm
