#include "core/activity.h"

#include <algorithm>
#include <iomanip>
#include <memory>
#include <sstream>

#include "core/process_stat.h"
#include "core/records.h"
#include "core/types.h"

namespace fastcomm {

using namespace records;

namespace {

uint64_t value(const Word& word) { return word.load(std::memory_order_relaxed); }

/// Seconds from a count of the file's counter to now.
double seconds_since(const Header& header, uint64_t ticks) {
  const auto all = static_cast<double>(value(header.latest_ticks) - value(header.first_ticks));
  const auto ns = static_cast<double>(value(header.latest_ns) - value(header.first_ns));
  const double then = static_cast<double>(ticks) * ns / std::max(all, 1.0);
  return (static_cast<double>(monotonic_ns() - value(header.first_ns)) - then) / 1e9;
}

std::string lasting(double seconds) {
  std::ostringstream text;
  text << " for " << std::fixed << std::setprecision(1) << std::max(seconds, 0.0) << " s";
  return text.str();
}

/// ", stopped", unless the process is of another namespace, or gone.
std::string state_of(const Header& header) {
  const ProcessStat stat = ProcessStat::of(std::to_string(header.pid));
  const std::string words = stat.start_time == header.start_time ? stat.words() : "";
  return words.empty() ? "" : ", " + words;
}

}  // namespace

std::string activity_in(int fd) {
  const auto copy = copy_of_records(fd);
  if (copy == nullptr) return "";
  const Header& header = copy->header;
  const CallPlace* inside = nullptr;  // the oldest call that is open
  const CallPlace* newest = nullptr;
  uint64_t last = 0, open = 0;  // when the latest call ended; how many are open
  for (const CallPlace& place : copy->calls) {
    const uint64_t stamp = value(place.stamp);
    if (stamp == 0 || stamp % 2 != 0) continue;
    if (value(place.ended) == 0) {
      ++open;
      if (inside == nullptr || stamp < value(inside->stamp)) inside = &place;
    }
    if (newest == nullptr || stamp > value(newest->stamp)) newest = &place;
    last = std::max(last, value(place.ended) >> kOutcomeBits);
  }
  std::string text;
  if (inside != nullptr) {
    const auto kind = static_cast<OpKind>(value(inside->about) & 0xFF);
    text = concat("in ", op_kind_name(kind));
    if (value(inside->sequence) != kNoSequence)
      text += concat(", sequence ", value(inside->sequence));
    if (open > 1) text += concat(" and ", open - 1, " more");
    text += "," + lasting(seconds_since(header, value(inside->issued)));
  } else {
    text = "outside any call";
    if (newest != nullptr) text += lasting(seconds_since(header, last));
  }
  return text + state_of(header);
}

}  // namespace fastcomm
