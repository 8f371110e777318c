#include "core/activity.h"

#include <unistd.h>

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

/// A copy of the file; nullptr if it is not one of this version.
std::unique_ptr<const File> copy_of(int fd) {
  auto file = std::make_unique<File>();
  auto* const bytes = reinterpret_cast<char*>(file.get());
  for (size_t at = 0; at < sizeof(File);) {
    const ssize_t part = pread(fd, bytes + at, sizeof(File) - at, static_cast<off_t>(at));
    if (part <= 0) return nullptr;
    at += static_cast<size_t>(part);
  }
  const bool known = file->header.magic == kMagic && file->header.version == kVersion;
  return known ? std::move(file) : nullptr;
}

/// True if the call of a place is still the one whose stamp is in the copy. Read after the copy, by
/// a system call of its own (Order, in core/records.h).
bool is_still(int fd, const File& copy, const CallPlace& place) {
  const auto at = reinterpret_cast<const char*>(&place) - reinterpret_cast<const char*>(&copy);
  uint64_t stamp = 0;
  return pread(fd, &stamp, sizeof(stamp), at) == sizeof(stamp) && stamp == value(place.stamp);
}

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

const char* state_of(const Header& header) {
  const ProcessStat stat = ProcessStat::of(std::to_string(header.pid));
  if (stat.start_time != header.start_time) return "";  // of another namespace, or gone
  switch (stat.state) {
    case 'R':
      return ", running";
    case 'S':
      return ", asleep";
    case 'D':
      return ", waiting in the kernel";
    case 'T':
    case 't':
      return ", stopped";
    case 'Z':
    case 'X':
      return ", ended";
    default:
      return "";
  }
}

}  // namespace

std::string activity_in(int fd) {
  const auto copy = fd < 0 ? nullptr : copy_of(fd);
  if (copy == nullptr) return "";
  const Header& header = copy->header;
  const CallPlace* inside = nullptr;  // the oldest call that is open
  const CallPlace* newest = nullptr;
  uint64_t last = 0, open = 0;  // when the latest call ended; how many are open
  for (const CallPlace& place : copy->calls) {
    const uint64_t stamp = value(place.stamp);
    if (stamp == 0) continue;
    if (stamp % 2 != 0) return "";
    if (value(place.ended) == 0) {
      ++open;
      if (inside == nullptr || stamp < value(inside->stamp)) inside = &place;
    }
    if (newest == nullptr || stamp > value(newest->stamp)) newest = &place;
    last = std::max(last, value(place.ended) >> kOutcomeBits);
  }
  const CallPlace* const told = inside != nullptr ? inside : newest;
  if (told != nullptr && !is_still(fd, *copy, *told)) return "";
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
