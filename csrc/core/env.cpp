#include "core/env.h"

#include <cstdlib>
#include <initializer_list>

#include "core/error.h"

namespace fastcomm {
namespace {

std::string choice(const char* name, std::initializer_list<const char*> allowed) {
  const char* text = std::getenv(name);
  const std::string value = text == nullptr || *text == '\0' ? *allowed.begin() : text;
  std::string listed;
  for (const char* candidate : allowed) {
    if (value == candidate) return value;
    listed += concat(listed.empty() ? "" : ", ", candidate);
  }
  throw Error(ErrorCode::kInvalidArgument, concat(name, "=", value, ": may be one of ", listed));
}

int64_t number(const char* name, int64_t fallback, Limits limits) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  FC_CHECK(*end == '\0' && value >= limits.least && value <= limits.most, name, "=", text,
           ": must be a whole number from ", limits.least, " to ", limits.most);
  return value;
}

double duration(const char* name, double fallback) {
  constexpr int kMost = 1000 * 1000;
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  FC_CHECK(*end == '\0' && value >= 0 && value <= kMost, name, "=", text,
           ": must be a number of seconds from 0 to ", kMost);
  return value;
}

}  // namespace

Environment parse_environment() {
  constexpr int64_t kKiB = 1024, kMiB = kKiB * kKiB;
  Environment env;
  env.transport = choice("FASTCOMM_TRANSPORT", {"auto", "memfd", "posix", "gloo"});
  env.isa = choice("FASTCOMM_ISA", {"auto", "generic", "avx2", "avx512"});
  env.peer_access = choice("FASTCOMM_PEER_ACCESS", {"auto", "off"}) == "auto";
  env.segment_bytes =
      static_cast<uint64_t>(number("FASTCOMM_SEGMENT_MB", 4096, {8, 1 << 20})) * kMiB;
  env.payload_bytes = static_cast<uint64_t>(number("FASTCOMM_ONE_SHOT_BYTES", 0, kPayloadLimits)) /
                      kPayloadUnit * kPayloadUnit;
  env.block_bytes = static_cast<uint64_t>(number("FASTCOMM_BLOCK_BYTES", 0, kBlockLimits)) /
                    kBlockUnit * kBlockUnit;
  env.route = choice("FASTCOMM_ROUTE", {"auto", "pinned", "nccl"});
  env.ipc = choice("FASTCOMM_IPC", {"auto", "handle", "descriptor", "fabric"});
  env.window_bytes =
      static_cast<uint64_t>(number("FASTCOMM_WINDOW_BYTES", 16 * kMiB, {4 * kKiB, 1024 * kMiB})) /
      4096 * 4096;
  env.pool_bytes = static_cast<uint64_t>(number("FASTCOMM_POOL_MB", 1 << 20, {0, 1 << 20})) * kMiB;
  env.device_blocks = static_cast<int>(number("FASTCOMM_DEVICE_BLOCKS", 0, kDeviceBlocksLimits));
  env.device_results = choice("FASTCOMM_DEVICE_RESULTS", {"auto", "push", "pull"});
  env.spin_us = number("FASTCOMM_SPIN_US", -1, {-1, 1000 * 1000});
  env.call_sites = choice("FASTCOMM_CALL_SITES", {"off", "on"}) == "on";
  env.wait_warning_s = duration("FASTCOMM_WAIT_WARNING_S", 30);
  return env;
}

const Environment& environment() {
  static const Environment env = parse_environment();
  return env;
}

}  // namespace fastcomm
