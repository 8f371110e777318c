#include "c10d/life/store_bootstrap.h"

#include <algorithm>
#include <thread>

#include "c10d/life/exception.h"
#include "core/error.h"
#include "core/wait_warning.h"

namespace fastcomm {

namespace {

/// Stores fail with their own messages and types.
template <class Body>
auto with_store(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const Error&) {  // raised by look_around
    throw;
  } catch (const std::exception&) {
    const std::string text = what_of(std::current_exception());  // with a stack behind, sometimes
    throw Error(
        ErrorCode::kSystem,
        concat("the store failed: ", text.substr(0, text.find('\n')),
               " The store is held by the first rank's process, or by torchrun: see what it "
               "did, and whether this host reaches it"));
  }
}

}  // namespace

void StoreBootstrap::set(const std::string& key, const std::string& value) {
  with_store([&] {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
    return true;
  });
}

bool StoreBootstrap::has(const std::string& key) {
  if (look_around_) look_around_();
  return with_store([&] { return store_->check({key}); });
}

/// Waits as the store does, or checks again and again if it has to look around.
bool StoreBootstrap::appears(const std::string& key, Deadline deadline) {
  constexpr Milliseconds kLongestPause{10};
  WaitWarning warning;
  const auto warn = [&] {
    warning.look(Clock::now(), label, [&](Clock::duration so_far) {
      return concat("creating a group ", waited(so_far), " for '", key,
                    "' in the store: a rank did not arrive, or ended");
    });
  };
  if (!look_around_) {
    // The store waits in one piece, except for the one look at the clock for the warning.
    const auto after = wait_warning_after();
    if (after < Clock::duration::max() && Clock::now() + after < deadline) {
      const auto first = Clock::now() + after;
      try {
        store_->wait({key}, std::chrono::ceil<Milliseconds>(after));
        return true;
      } catch (const std::exception&) {
        if (Clock::now() < first) throw;
        warn();
      }
    }
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
    try {
      store_->wait({key}, std::max(left, Milliseconds(1)));
      return true;
    } catch (const std::exception&) {
      if (Clock::now() < deadline) throw;
      return false;  // their own messages say "time out"
    }
  }
  auto pause = std::chrono::microseconds(100);
  while (!has(key)) {
    if (Clock::now() > deadline) return false;
    warn();
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(pause * 2, kLongestPause);
  }
  return true;
}

std::string StoreBootstrap::get(const std::string& key, Deadline deadline) {
  if (!with_store([&] { return appears(key, deadline); })) {
    throw Error(ErrorCode::kTimeout, concat("creating a group timed out waiting for '", key,
                                            "' in the store: a rank did not arrive, or ended"));
  }
  const std::vector<uint8_t> value = with_store([&] { return store_->get(key); });
  return std::string(value.begin(), value.end());
}

}  // namespace fastcomm
