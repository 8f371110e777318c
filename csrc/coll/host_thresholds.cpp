#include "coll/host_thresholds.h"

#include <algorithm>
#include <sstream>

#include "core/env.h"
#include "core/error.h"

namespace fastcomm {
namespace {

std::string source_text(ChosenBy who, const char* variable) {
  switch (who) {
    case ChosenBy::kEnvironment:
      return concat(variable, " of rank 0");
    case ChosenBy::kTuning:
      return "tuned for this number of hosts and ranks";
    default:
      return "by default";
  }
}

/// Writes the value that counts, and its source.
void choose(uint64_t tuned, uint64_t set, uint64_t& value, ChosenBy& by) {
  if (tuned != 0) {
    value = tuned;
    by = ChosenBy::kTuning;
  }
  if (set != 0) {
    value = set;
    by = ChosenBy::kEnvironment;
  }
}

}  // namespace

uint64_t HostThresholds::chunk_of(uint64_t total) const {
  if (chunk_bytes != 0) return chunk_bytes;
  // Nothing is sent while the first chunk is summed in the hosts, and while the last one's results
  // arrive: so a message has several chunks, as long as they are not so short that their steps set
  // the time.
  constexpr uint64_t kChunks = 6;
  const uint64_t wanted = total / kChunks / kLeastChunkBytes * kLeastChunkBytes;
  return std::clamp(wanted, kLeastChunkBytes, kMostChunkBytes);
}

std::string HostThresholds::described() const {
  const std::string chunks = chunk_bytes != 0
                                 ? concat(chunk_bytes, " bytes")
                                 : concat(kLeastChunkBytes, " to ", kMostChunkBytes, " bytes");
  return concat("short up to ", short_bytes, " bytes (",
                source_text(short_by, "FASTCOMM_HOSTS_SHORT_BYTES"), "), longer in chunks of ",
                chunks, " (", source_text(chunk_by, "FASTCOMM_HOSTS_CHUNK_BYTES"), ")");
}

std::string HostThresholds::as_text() const {
  return concat(short_bytes, " ", chunk_bytes, " ", static_cast<uint32_t>(short_by), " ",
                static_cast<uint32_t>(chunk_by));
}

HostThresholds HostThresholds::from_text(const std::string& text) {
  HostThresholds told;
  uint32_t sources[2] = {};
  std::istringstream from(text);
  from >> told.short_bytes >> told.chunk_bytes >> sources[0] >> sources[1];
  const auto known = [](uint32_t by) {
    return by <= static_cast<uint32_t>(ChosenBy::kEnvironment);
  };
  if (!from || !is_host_tuning({told.short_bytes, told.chunk_bytes}) || told.short_bytes == 0 ||
      !known(sources[0]) || !known(sources[1])) {
    return {};
  }
  told.short_by = static_cast<ChosenBy>(sources[0]);
  told.chunk_by = static_cast<ChosenBy>(sources[1]);
  return told;
}

HostThresholds choose_host_thresholds(int hosts, int ranks) {
  const Environment& env = environment();
  const HostTuning tuning = host_tuning_for(hosts, ranks);
  HostThresholds chosen;
  choose(tuning.short_bytes, env.hosts_short_bytes, chosen.short_bytes, chosen.short_by);
  choose(tuning.chunk_bytes, env.hosts_chunk_bytes, chosen.chunk_bytes, chosen.chunk_by);
  return chosen;
}

}  // namespace fastcomm
