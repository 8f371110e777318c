// Threads that look after something: what begins during a look is looked at, too.
//
//   watch_test CASE SEED
#include "c10d/life/watch.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"

namespace fastcomm::testing {
namespace {

using std::chrono::seconds;

/// Something to look after, as users of a watch have it.
struct Things {
  std::mutex mutex;
  std::condition_variable changed;
  int begun = 0, seen = 0;  // under mutex
  int looks = 0;            // under mutex
  int held = 0;             // under mutex; the number of the look that is not to end yet

  /// Counts what has begun; is over when nobody holds it.
  bool look() {
    std::unique_lock<std::mutex> lock(mutex);
    seen = begun;
    const int number = ++looks;
    changed.notify_all();
    changed.wait(lock, [&] { return held != number; });
    return false;
  }
  void begin() {
    const std::lock_guard<std::mutex> lock(mutex);
    ++begun;
  }
  template <class Condition>
  bool comes(const Condition& condition) {
    std::unique_lock<std::mutex> lock(mutex);
    return changed.wait_for(lock, seconds(5), condition);
  }
};

/// A thing begins behind the count of a look, and before its end.
CASE(during_a_look) {
  Things things;
  things.held = 1;
  Watch watch("fc-test", [&] { return things.look(); });
  watch.wake();
  EXPECT(things.comes([&] { return things.looks == 1; }));
  things.begin();
  watch.wake();
  {
    const std::lock_guard<std::mutex> lock(things.mutex);
    things.held = 0;
  }
  things.changed.notify_all();
  EXPECT(things.comes([&] { return things.seen == 1; }), "what began during a look is not seen");
}

/// Two threads begin things; a watch that sleeps in between sees all.
CASE(many) {
  Things things;
  Watch watch("fc-test", [&] { return things.look(); });
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 300; ++turn) {
        watch.wake();
        things.begin();
        watch.wake();
        EXPECT(things.comes([&, mine = turn + 1] { return things.seen >= mine; }));
      }
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT(things.comes([&] { return things.seen == 600; }), "not all are seen");
}

CASE(ends) {
  Things things;
  Watch watch("fc-test", [&] { return things.look(); });
  EXPECT(!watch.has_stopped());
  watch.stop();
  EXPECT(watch.has_stopped());
  things.begin();
  watch.wake();  // starts no thread any more
  watch.stop();
  EXPECT(things.seen == 0 && things.looks == 0);
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
