#include "transport/bootstrap.h"

#include <sys/random.h>

#include <algorithm>
#include <charconv>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/wait_warning.h"

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
std::string agreed_key(const std::string& nonce) { return concat("agreed/", nonce); }

// First letters of rank 0's final message: its `told` follows kAgreed, and the reason why there is
// no group (different sizes, or a rank with a problem) the others. A rank with a problem
// acknowledges with the problem, the others with the size of the group.
constexpr char kAgreed = '+', kRefused = '-', kProblem = '!';
constexpr size_t kNonceDigits = 16;

/// The group's size as a rank has written it, in decimal.
int parse_size(const std::string& text, int rank) {
  int size = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, size);
  if (text.empty() || error != std::errc() || stop != end) {
    throw Error(ErrorCode::kSystem, concat("the store holds no valid size of a group from rank ",
                                           rank, ": let nobody else write to the store"));
  }
  return size;
}

uint64_t parse_nonce(const std::string& text) {
  uint64_t nonce = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, nonce, 16);
  if (text.size() != kNonceDigits || error != std::errc() || stop != end) {
    throw Error(ErrorCode::kSystem,
                "the store holds no valid answer of rank 0: install the same fastcomm for every "
                "rank, and let nobody else write to the store");
  }
  return nonce;
}

/// The reason why there is no group; empty if the sizes agree.
std::string disagreement(int size_of_first, int rank, int size) {
  if (size == size_of_first) return "";
  return concat(kRefused, "rank ", rank, " was started for a group of ", size,
                " ranks, rank 0 for one of ", size_of_first,
                ": give every rank the same world size");
}

/// The same for a rank's acknowledgement.
std::string refusal_of(int size, int rank, const std::string& ack) {
  if (!ack.empty() && ack[0] == kProblem) return ack;
  return disagreement(size, rank, parse_size(ack, rank));
}

std::string problem_of(int rank, const std::string& problem) {
  return problem.empty() ? "" : concat(kProblem, "rank ", rank, ": ", problem);
}

/// Raises the error of a refusal; `refusal` may be something else.
void check_refusal(const std::string& refusal) {
  if (refusal.empty()) return;
  FC_CHECK(refusal[0] != kRefused, refusal.substr(1));
  if (refusal[0] == kProblem) throw Error(ErrorCode::kSystem, refusal.substr(1));
}

/// Rank 0's side: answers tokens until every rank has acknowledged. Returns the reason why there is
/// no group, or "".
std::string welcome_all(Bootstrap& store, int size, const std::string& nonce, std::string refusal,
                        Deadline deadline) {
  std::vector<std::string> answered(size);
  std::vector<bool> arrived(size, false);
  arrived[0] = true;
  // Ranks that come soon are told why there is no group; no time is spent on others.
  const auto soon = [&] { deadline = std::min(deadline, Clock::now() + std::chrono::seconds(2)); };
  if (!refusal.empty()) soon();
  auto pause = std::chrono::microseconds(100);
  const auto names_of_missing = [&] {
    std::string names;
    for (int rank = 0; rank < size; ++rank) {
      if (!arrived[rank]) names += concat(names.empty() ? "" : ", ", rank);
    }
    return names;
  };
  WaitWarning warning;
  for (int missing = size - 1; missing > 0;) {
    for (int rank = 1; rank < size; ++rank) {
      if (arrived[rank]) continue;
      if (store.has(hello_key(rank))) {
        const std::string token = store.get(hello_key(rank), deadline);
        if (token != answered[rank]) {
          store.set(welcome_key(rank, token), concat(nonce, "/", size));
        }
        answered[rank] = token;
      }
      if (!answered[rank].empty() && store.has(ack_key(nonce, rank))) {
        if (refusal.empty()) {
          refusal = refusal_of(size, rank, store.get(ack_key(nonce, rank), deadline));
          if (!refusal.empty()) soon();
        }
        arrived[rank] = true;
        --missing;
      }
    }
    if (missing == 0) break;
    if (Clock::now() > deadline) {
      if (!refusal.empty()) return refusal;
      throw Error(ErrorCode::kTimeout,
                  concat("creating a group of ", size, " ranks timed out: ranks ",
                         names_of_missing(), " did not arrive; start them, or raise timeout="));
    }
    warning.look(Clock::now(), store.label, [&](Clock::duration so_far) {
      return concat("creating a group of ", size, " ranks ", waited(so_far), ": ranks ",
                    names_of_missing(), " did not arrive; start them");
    });
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(5000));
  }
  return refusal;
}

}  // namespace

Agreement agree(Bootstrap& store, int rank, int size, const std::string& told, Deadline deadline,
                const std::string& problem) {
  if (rank == 0) {
    const uint64_t nonce = random_bits();
    const std::string digits = hex(nonce);
    const std::string refusal =
        welcome_all(store, size, digits, problem_of(rank, problem), deadline);
    store.set(agreed_key(digits), refusal.empty() ? kAgreed + told : refusal);
    check_refusal(refusal);
    return {nonce, told};
  }
  const std::string token = hex(random_bits());
  store.set(hello_key(rank), token);
  const std::string welcome = store.get(welcome_key(rank, token), deadline);
  const std::string digits = welcome.substr(0, kNonceDigits);
  const uint64_t nonce = parse_nonce(digits);
  // Rank 0 also learns of a rank that will not go on.
  store.set(ack_key(digits, rank),
            problem.empty() ? std::to_string(size) : problem_of(rank, problem));
  check_refusal(problem_of(rank, problem));
  check_refusal(disagreement(
      parse_size(welcome.substr(std::min(welcome.size(), kNonceDigits + 1)), 0), rank, size));
  const std::string agreed = store.get(agreed_key(digits), deadline);
  check_refusal(agreed);
  if (agreed.empty() || agreed[0] != kAgreed) {
    throw Error(ErrorCode::kSystem, "the store holds no valid answer of rank 0");
  }
  return {nonce, agreed.substr(1)};
}

}  // namespace fastcomm
