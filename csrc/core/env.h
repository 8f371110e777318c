// Every FASTCOMM_* variable that a process reads, in one table: the parser, `fastcomm env` and
// docs/settings.md come from it. A new setting is a row of it and a member of Environment.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace fastcomm {

/// Values in force; settings() says what each does.
struct Environment {
  std::string transport, isa, route, ipc, device_results, dump;
  bool peer_access = true, call_sites = false, records = true;
  uint64_t segment_bytes = 0, payload_bytes = 0, block_bytes = 0, window_bytes = 0, pool_bytes = 0;
  uint64_t hosts_short_bytes = 0, hosts_chunk_bytes = 0;
  int64_t device_blocks = 0, spin_us = -1;
  double wait_warning_s = 30, link_timeout_s = 10;
};

struct Limits {
  int64_t least, most;
};
constexpr Limits kPayloadLimits{64, 4 << 20}, kBlockLimits{4 << 10, 64 << 20};
constexpr Limits kDeviceBlocksLimits{0, 1 << 16};
// At least what an envelope holds; at most so little that every host may keep one of each other.
constexpr Limits kHostsShortLimits{2 << 10, 1 << 20};
/// Sizes are multiples of these; others are rounded down.
constexpr uint64_t kPayloadUnit = 64, kBlockUnit = 4096;
/// In place of such a unit: they are powers of two.
constexpr uint64_t kPowerOfTwo = 0;

struct Setting {
  /// monostate: read by Python. bool: false for "off".
  using Member =
      std::variant<std::monostate, std::string Environment::*, bool Environment::*,
                   uint64_t Environment::*, int64_t Environment::*, double Environment::*>;

  const char* name;
  std::string fallback;  // the default, as a user would write it
  const char* words;     // allowed words, with ", " between; "" for numbers and any text
  Limits limits;         // of numbers, but for the default
  uint64_t unit;         // of numbers: bytes for each 1 of the variable, or 1
  uint64_t multiple;     // numbers are rounded down to multiples, or kPowerOfTwo
  Member member;
  const char* effect;  // a cell of docs/settings.md
};

/// In the order of docs/settings.md.
const std::vector<Setting>& settings();

/// What may be written, in words.
std::string allowed_values(const Setting& setting);

/// The text of a setting, its default if the variable is empty or missing. Raises
/// Error(kInvalidArgument) with the variable, its value and the allowed ones.
std::string setting_text(const Setting& setting);

/// The parsed environment. Raises as setting_text.
const Environment& environment();

/// Parses anew; environment() keeps the result of the first call.
Environment parse_environment();

}  // namespace fastcomm
