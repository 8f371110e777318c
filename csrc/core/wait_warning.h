// Warnings on standard error from a rank that waits for others that do not come.
//
// They cost nothing to a call that goes well. Waits ask for them where they look at clocks and for
// deaths anyway: after some hundred microseconds of yields, then after each sleep. Asking is one
// comparison of times; the text is composed only when it is due.
#pragma once

#include <atomic>
#include <string>

#include "core/clock.h"

namespace fastcomm {

/// FASTCOMM_WAIT_WARNING_S; Clock::duration::max() where it is 0.
Clock::duration wait_warning_after();

/// True for one caller of this process per two wait_warning_after(), so that a loop of late calls,
/// or many groups that wait for the same rank, do not fill a log. Lock-free.
bool take_turn_to_warn(Clock::time_point now);

/// Writes one line to standard error, in one write(2), so that lines of several ranks do not mix.
/// `label` comes first.
void write_warning(const std::string& label, const std::string& text);

/// "has waited for 31.2 s"
std::string waited(Clock::duration so_far);

/// "Timed out waiting 700ms", as torch's backends say it, so that whoever looks for that finds it.
std::string timed_out(Milliseconds timeout);

/// The warning of one wait, given once. Threads that wait for the same may share it.
class WaitWarning {
 public:
  explicit WaitWarning(Clock::time_point since = Clock::now()) : since_(since) {}

  /// `text(so_far)` names those that are waited for.
  template <class Text>
  void look(Clock::time_point now, const std::string& label, const Text& text) {
    const auto so_far = now - since_;
    if (so_far < wait_warning_after() || said_.load(std::memory_order_relaxed)) return;
    // Relaxed: the mark orders only itself. If another warning was just written, the next look
    // tries again.
    if (!take_turn_to_warn(now) || said_.exchange(true, std::memory_order_relaxed)) return;
    write_warning(label, text(so_far));
  }

 private:
  const Clock::time_point since_;
  std::atomic<bool> said_{false};
};

}  // namespace fastcomm
