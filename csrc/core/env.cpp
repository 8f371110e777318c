#include "core/env.h"

#include <cstdlib>
#include <type_traits>

#include "core/error.h"

namespace fastcomm {
namespace {

bool is_seconds(const Setting& setting) {
  return std::holds_alternative<double Environment::*>(setting.member);
}

bool is_among(const std::string& value, const std::string& words) {
  return (", " + words + ", ").find(", " + value + ", ") != std::string::npos &&
         value.find(',') == std::string::npos;
}

bool is_number_within(const std::string& text, const Setting& setting) {
  const Limits limits = setting.limits;
  char* end = nullptr;
  if (is_seconds(setting)) {
    const double value = std::strtod(text.c_str(), &end);
    return *end == '\0' && value >= static_cast<double>(limits.least) &&
           value <= static_cast<double>(limits.most);
  }
  const long long value = std::strtoll(text.c_str(), &end, 10);
  return *end == '\0' && value >= limits.least && value <= limits.most;
}

/// One of some words, of which the first is the default.
Setting words(const char* name, const char* allowed, Setting::Member member, const char* effect) {
  const std::string all = allowed;
  return {name, all.substr(0, all.find(',')), allowed, Limits{0, 0}, 1, 1, member, effect};
}

Setting number(const char* name, const char* fallback, Limits limits, uint64_t unit,
               uint64_t multiple, Setting::Member member, const char* effect) {
  return {name, fallback, "", limits, unit, multiple, member, effect};
}

/// Any text.
Setting text(const char* name, Setting::Member member, const char* effect) {
  return {name, "", "", Limits{0, 0}, 1, 1, member, effect};
}

bool is_text(const Setting& setting) {
  return *setting.words == '\0' &&
         std::holds_alternative<std::string Environment::*>(setting.member);
}

uint64_t rounded_down(uint64_t value, uint64_t multiple) {
  if (multiple != kPowerOfTwo) return value / multiple * multiple;
  while ((value & (value - 1)) != 0) value &= value - 1;  // without its lowest bit
  return value;
}

void set(Environment& env, const Setting& setting, const std::string& text) {
  std::visit(
      [&](auto member) {
        using Member = decltype(member);
        if constexpr (std::is_same<Member, std::string Environment::*>::value) {
          env.*member = text;
        } else if constexpr (std::is_same<Member, bool Environment::*>::value) {
          env.*member = text != "off";
        } else if constexpr (std::is_same<Member, double Environment::*>::value) {
          env.*member = std::strtod(text.c_str(), nullptr);
        } else if constexpr (std::is_same<Member, uint64_t Environment::*>::value) {
          const uint64_t value = std::strtoull(text.c_str(), nullptr, 10);
          env.*member = rounded_down(value, setting.multiple) * setting.unit;
        } else if constexpr (std::is_same<Member, int64_t Environment::*>::value) {
          env.*member = std::strtoll(text.c_str(), nullptr, 10);
        }
      },
      setting.member);
}

}  // namespace

const std::vector<Setting>& settings() {
  constexpr uint64_t kMiB = 1 << 20;
  static const auto* const table = new std::vector<Setting>{
      words("FASTCOMM_TRANSPORT", "auto, memfd, posix, gloo", &Environment::transport,
            "how ranks share memory: `posix` by `shm_open`; `gloo`: every group of more than one "
            "rank runs on Gloo"),
      number("FASTCOMM_SEGMENT_MB", "4096", Limits{8, 1 << 20}, kMiB, 1,
             &Environment::segment_bytes,
             "most shared memory of a process, for slots and tensors; taken as needed. Less "
             "where `ulimit -v` of a rank or `ulimit -f` is low"),
      number("FASTCOMM_ONE_SHOT_BYTES", "0", kPayloadLimits, 1, kPayloadUnit,
             &Environment::payload_bytes,
             "most that goes in one step: a message of `broadcast` or `all_gather`, n - 1 of "
             "`all_reduce`; on devices, what a rank reads. 0: 1 MiB for two CPU ranks, 256 KiB "
             "for more, 64 KiB on devices"),
      number("FASTCOMM_BLOCK_BYTES", "0", kBlockLimits, 1, kBlockUnit, &Environment::block_bytes,
             "what one step of a longer message moves. 0: a core's second-level cache, from 512 "
             "KiB to 2 MiB"),
      number("FASTCOMM_HOSTS_SHORT_BYTES", "0", kHostsShortLimits, 1, kPowerOfTwo,
             &Environment::hosts_short_bytes,
             "between hosts, most that goes by the first rank of each; rounded down to a power "
             "of two. 0: 64 KiB"),
      number("FASTCOMM_HOSTS_CHUNK_BYTES", "0", kBlockLimits, 1, kBlockUnit,
             &Environment::hosts_chunk_bytes,
             "between hosts, what longer messages are cut into. 0: a sixth of the message, from "
             "1 to 4 MiB"),
      number("FASTCOMM_SPIN_US", "-1", Limits{-1, 1000 * 1000}, 1, 1, &Environment::spin_us,
             "microseconds that a wait spins before it yields; -1 chooses"),
      number("FASTCOMM_WAIT_WARNING_S", "30", Limits{0, 1000 * 1000}, 1, 1,
             &Environment::wait_warning_s,
             "seconds of waiting after which a rank says whom it waits for: once a call, and at "
             "most once in twice that time; fractions are allowed. 0: never"),
      number("FASTCOMM_LINK_TIMEOUT_S", "10", Limits{0, 1000 * 1000}, 1, 1,
             &Environment::link_timeout_s,
             "between hosts, seconds without an answer after which one counts as cut off; a "
             "stopped process still answers. 0: never"),
      words("FASTCOMM_CALL_SITES", "off, on", &Environment::call_sites,
            "`on`: messages say at which line each rank made its call ([errors.md](errors.md))"),
      words("FASTCOMM_RECORDS", "on, off", &Environment::records,
            "`on`: calls are written down in memory, for `fastcomm top` and `fastcomm trace` "
            "([tools.md](tools.md))"),
      text("FASTCOMM_DUMP", &Environment::dump,
           "where the records of a job's ranks are kept if a group fails "
           "([tools.md](tools.md#on-failure)). Empty: nowhere"),
      words("FASTCOMM_ISA", "auto, generic, avx2, avx512", &Environment::isa,
            "the processor's instructions that loops use"),
      words("FASTCOMM_ROUTE", "auto, pinned, nccl, fastest", &Environment::route,
            "for tensors on devices of several processes. `pinned`: through host memory; `nccl`: "
            "without fastcomm's kernels. `fastest`: Gloo as a whole where [several "
            "hosts](limits.md#several-hosts) have one rank each, or ranks whose order costs "
            "more, whatever the bits"),
      words("FASTCOMM_IPC", "auto, handle, descriptor, fabric", &Environment::ipc,
            "how processes map memory of each other's devices: `handle` is `cudaIpc`; the driver's "
            "virtual memory by `descriptor` or `fabric`; `auto`: the first that works"),
      number("FASTCOMM_WINDOW_BYTES", "16777216", Limits{4 << 10, 1 << 30}, 1, 4096,
             &Environment::window_bytes,
             "what one round between processes' devices moves; a group takes four times that of "
             "each device"),
      number("FASTCOMM_POOL_MB", "1048576", Limits{0, 1 << 20}, kMiB, 1, &Environment::pool_bytes,
             "most memory of a device for tensors that operations use in place; taken as needed"),
      number("FASTCOMM_DEVICE_BLOCKS", "0", kDeviceBlocksLimits, 1, 1, &Environment::device_blocks,
             "most blocks of a kernel between processes' devices: fewer leave more of a GPU to "
             "others. 0: half its multiprocessors, an eighth through the host's memory"),
      words("FASTCOMM_DEVICE_RESULTS", "auto, push, pull", &Environment::device_results,
            "in reductions between processes' devices, `push` (`auto`): each rank writes its "
            "slice to all who get it; `pull`: they read it, and nothing is used in place"),
      words("FASTCOMM_PEER_ACCESS", "auto, off", &Environment::peer_access,
            "`off`: devices of one process exchange data through pinned host memory"),
      words("FASTCOMM_TUNING", "auto, off", std::monostate{},
            "`off`: ignore what `fastcomm tune` has measured on this machine"),
      words("FASTCOMM_VERDICTS", "auto, off", std::monostate{},
            "`off`: ignore what `fastcomm check` has found wrong on this machine"),
  };
  return *table;
}

std::string allowed_values(const Setting& setting) {
  if (*setting.words != '\0') return concat("one of ", setting.words);
  if (is_text(setting)) return "a folder";
  return concat(is_seconds(setting) ? "a number of seconds" : "a whole number", " from ",
                setting.limits.least, " to ", setting.limits.most);
}

std::string setting_text(const Setting& setting) {
  const char* const text = std::getenv(setting.name);
  if (text == nullptr || *text == '\0' || setting.fallback == text) return setting.fallback;
  if (is_text(setting)) return text;
  const bool is_word = *setting.words != '\0';
  FC_CHECK(is_word ? is_among(text, setting.words) : is_number_within(text, setting), setting.name,
           "=", text, is_word ? ": may be " : ": must be ", allowed_values(setting));
  return text;
}

Environment parse_environment() {
  Environment env;
  for (const Setting& setting : settings()) set(env, setting, setting_text(setting));
  return env;
}

const Environment& environment() {
  static const Environment env = parse_environment();
  return env;
}

}  // namespace fastcomm
