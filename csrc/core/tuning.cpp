#include "core/tuning.h"

#include <map>
#include <mutex>
#include <utility>

#include "core/env.h"
#include "core/error.h"

namespace fastcomm {
namespace {

struct Told {
  std::mutex mutex;
  std::map<int, Tuning> by_ranks;
  std::map<std::pair<int, int>, HostTuning> by_hosts;
};
Told& told() {
  static auto& all = *new Told;
  return all;
}

bool is_within(uint64_t value, Limits limits) {
  return value >= static_cast<uint64_t>(limits.least) &&
         value <= static_cast<uint64_t>(limits.most);
}

uint64_t checked(const char* name, uint64_t value, Limits limits, uint64_t unit) {
  FC_CHECK(value == 0 || is_within(value, limits), name, " is ", value, ": must be 0 or from ",
           limits.least, " to ", limits.most);
  return value / unit * unit;
}

Tuning checked(Tuning tuning) {
  tuning.payload_bytes =
      checked("payload_bytes", tuning.payload_bytes, kPayloadLimits, kPayloadUnit);
  tuning.block_bytes = checked("block_bytes", tuning.block_bytes, kBlockLimits, kBlockUnit);
  tuning.slot_bytes = checked("slot_bytes", tuning.slot_bytes, kPayloadLimits, kPayloadUnit);
  tuning.device_blocks = static_cast<int>(checked(
      "device_blocks", static_cast<uint64_t>(tuning.device_blocks), kDeviceBlocksLimits, 1));
  return tuning;
}

}  // namespace

const char* chosen_by_text(ChosenBy who, const char* variable) {
  switch (who) {
    case ChosenBy::kEnvironment:
      return variable;
    case ChosenBy::kTuning:
      return "tuned for this number of ranks";
    default:
      return "by default for this number of ranks";
  }
}

Tuning tuning_for(int ranks) {
  Told& all = told();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.by_ranks.find(ranks);
  return found == all.by_ranks.end() ? Tuning{} : found->second;
}

void set_tuning(int ranks, const Tuning& tuning) {
  const Tuning rounded = checked(tuning);
  Told& all = told();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.by_ranks[ranks] = rounded;
}

HostTuning host_tuning_for(int hosts, int ranks) {
  Told& all = told();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.by_hosts.find({hosts, ranks});
  return found == all.by_hosts.end() ? HostTuning{} : found->second;
}

void set_host_tuning(int hosts, int ranks, const HostTuning& tuning) {
  FC_CHECK(is_host_tuning(tuning), "short_bytes is ", tuning.short_bytes, ", chunk_bytes ",
           tuning.chunk_bytes, ": must be 0 or a power of two from ", kHostsShortLimits.least,
           " to ", kHostsShortLimits.most, ", and 0 or a multiple of ", kBlockUnit, " from ",
           kBlockLimits.least, " to ", kBlockLimits.most);
  Told& all = told();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.by_hosts[{hosts, ranks}] = tuning;
}

bool is_host_tuning(const HostTuning& tuning) {
  const uint64_t power = tuning.short_bytes, chunk = tuning.chunk_bytes;
  return (power == 0 || (is_within(power, kHostsShortLimits) && (power & (power - 1)) == 0)) &&
         (chunk == 0 || (is_within(chunk, kBlockLimits) && chunk % kBlockUnit == 0));
}

}  // namespace fastcomm
