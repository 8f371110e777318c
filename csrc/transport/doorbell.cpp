#include "transport/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace fastcomm {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4,
              "a futex word is a plain 32-bit word");

void ring(Doorbell& doorbell) {
  doorbell.word.fetch_add(1, std::memory_order_seq_cst);
  // Not FUTEX_PRIVATE: the sleeper may be another process.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&doorbell.word), FUTEX_WAKE, INT_MAX, nullptr,
          nullptr, 0);
}

void futex_sleep(Doorbell& doorbell, uint32_t word, Deadline until) {
  using std::chrono::nanoseconds;
  const auto left = std::chrono::duration_cast<nanoseconds>(until - Clock::now()).count();
  if (left <= 0) return;
  constexpr int64_t kSecond = 1000 * 1000 * 1000;
  const int64_t bounded = std::min<int64_t>(left, kSecond);
  timespec timeout{static_cast<time_t>(bounded / kSecond), static_cast<long>(bounded % kSecond)};
  // Interrupted, woken, timed out and "the word has changed" all mean: look again.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&doorbell.word), FUTEX_WAIT, word, &timeout,
          nullptr, 0);
}

}  // namespace fastcomm
