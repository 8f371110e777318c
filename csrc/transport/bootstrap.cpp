#include "transport/bootstrap.h"

#include <sys/random.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "core/error.h"

namespace fastcomm {

uint64_t random_bits() {
  uint64_t bits = 0;
  FC_SYSCALL(getrandom(&bits, sizeof(bits), 0) == sizeof(bits), "getrandom");
  return bits;
}

std::string hex(uint64_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) text[i] = kDigits[value & 15];
  return text;
}

namespace {

std::string hello_key(int rank) { return concat("hello/", rank); }
std::string welcome_key(int rank, const std::string& token) {
  return concat("welcome/", rank, "/", token);
}
std::string ack_key(const std::string& nonce, int rank) { return concat("ack/", nonce, "/", rank); }

/// Rank 0's side: answers tokens until every rank has acknowledged.
void welcome_all(Bootstrap& store, int size, const std::string& nonce, Deadline deadline) {
  std::vector<std::string> answered(size);
  std::vector<bool> arrived(size, false);
  arrived[0] = true;
  auto pause = std::chrono::microseconds(100);
  for (int missing = size - 1; missing > 0;) {
    for (int rank = 1; rank < size; ++rank) {
      if (arrived[rank]) continue;
      if (store.has(hello_key(rank))) {
        const std::string token = store.get(hello_key(rank), deadline);
        if (token != answered[rank]) store.set(welcome_key(rank, token), nonce);
        answered[rank] = token;
      }
      if (!answered[rank].empty() && store.has(ack_key(nonce, rank))) {
        arrived[rank] = true;
        --missing;
      }
    }
    if (missing == 0) break;
    if (Clock::now() > deadline) {
      std::string names;
      for (int rank = 0; rank < size; ++rank) {
        if (!arrived[rank]) names += concat(names.empty() ? "" : ", ", rank);
      }
      throw Error(ErrorCode::kTimeout,
                  concat("creating a group of ", size, " ranks timed out: ranks ", names,
                         " did not arrive; start them, or raise timeout="));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(5000));
  }
}

}  // namespace

uint64_t agree_on_nonce(Bootstrap& store, int rank, int size, Deadline deadline) {
  if (rank == 0) {
    const uint64_t nonce = random_bits();
    welcome_all(store, size, hex(nonce), deadline);
    return nonce;
  }
  const std::string token = hex(random_bits());
  store.set(hello_key(rank), token);
  const std::string nonce = store.get(welcome_key(rank, token), deadline);
  store.set(ack_key(nonce, rank), "1");
  return std::stoull(nonce, nullptr, 16);
}

}  // namespace fastcomm
