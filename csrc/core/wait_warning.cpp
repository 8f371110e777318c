#include "core/wait_warning.h"

#include <unistd.h>

#include <cstdint>

#include "core/env.h"
#include "core/error.h"
#include "core/utf8.h"

namespace fastcomm {

Clock::duration wait_warning_after() {
  static const Clock::duration after = [] {
    const double wanted = environment().wait_warning_s;
    return wanted == 0
               ? Clock::duration::max()
               : std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wanted));
  }();
  return after;
}

bool take_turn_to_warn(Clock::time_point now) {
  static std::atomic<int64_t> next{INT64_MIN};
  const int64_t at = now.time_since_epoch().count();
  int64_t due = next.load(std::memory_order_relaxed);
  return at >= due && next.compare_exchange_strong(due, at + 2 * wait_warning_after().count(),
                                                   std::memory_order_relaxed);
}

void write_warning(const std::string& label, const std::string& text) {
  constexpr size_t kPipeTakesAtOnce = 4096;
  std::string line = label + text;
  if (line.size() >= kPipeTakesAtOnce) {
    line = concat(beginning_of(line, kPipeTakesAtOnce - 5), " ...");
  }
  line += '\n';
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

std::string waited(Clock::duration so_far) {
  return concat("has waited for ",
                static_cast<double>(static_cast<int64_t>(seconds(so_far) * 10)) / 10, " s");
}

std::string timed_out(Milliseconds timeout) {
  return concat("Timed out waiting ", timeout.count(), "ms");
}

}  // namespace fastcomm
