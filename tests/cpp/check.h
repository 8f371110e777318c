// What every torch-free C++ test needs: checks that count failures and continue, and a table of
// named cases.
#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/numeric.h"
#include "core/types.h"
#if defined(FC_SHIM)
#include "shim/interleave.h"
#include "shim/order.h"
#endif

namespace fastcomm::testing {

inline std::atomic<int> failures{0};

inline void report(bool good, const char* file, int line, const std::string& text) {
  if (good) return;
  if (failures.fetch_add(1) < 20) std::printf("%s:%d: %s\n", file, line, text.c_str());
}

/// Counts a failure unless `condition` holds, and prints the further arguments.
#define EXPECT(condition, ...)                                                  \
  ::fastcomm::testing::report(static_cast<bool>(condition), __FILE__, __LINE__, \
                              ::fastcomm::concat("not true: " #condition ": ", ##__VA_ARGS__))

/// The Error that `body` raises, or nothing.
template <class Body>
std::string error_of(const Body& body, ErrorCode* code = nullptr) {
  try {
    body();
  } catch (const Error& error) {
    if (code != nullptr) *code = error.code();
    return error.what();
  }
  return "";
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

using Cases = std::vector<std::pair<const char*, std::function<void(uint64_t seed)>>>;

/// Those that CASE has defined, in their order.
inline Cases& defined_cases() {
  static Cases cases;
  return cases;
}
struct DefinedCase {
  DefinedCase(const char* name, void (*body)(uint64_t)) {
    defined_cases().emplace_back(name, body);
  }
};

/// `CASE(name) { ... }` defines a case of a test, which has `seed`.
#define CASE(name)                                                           \
  void test_##name(uint64_t seed);                                           \
  const ::fastcomm::testing::DefinedCase defined_##name(#name, test_##name); \
  void test_##name([[maybe_unused]] uint64_t seed)

/// main() of a test: `program CASE [SEED]`, or all cases. Under the shim SEED also seeds the yields
/// at flags and barriers.
inline int run_cases(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "all";
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
#if defined(FC_SHIM)
  interleave_seed.store(seed);
#endif
  bool found = false;
  for (const auto& [name, body] : defined_cases()) {
    if (wanted != "all" && wanted != name) continue;
    found = true;
    const auto start = std::chrono::steady_clock::now();
    body(seed);
#if defined(FC_SHIM)
    // Whatever the timing was: unordered uses of memory. Reported besides wrong bytes, which may
    // result by chance.
    int hazards = 0;
    for (const std::string& hazard : shim::Order::get().take_hazards()) {
      ++failures;
      if (++hazards <= 5) std::printf("%s: a hazard: %s\n", name, hazard.c_str());
    }
#endif
    std::printf("%s: seed %llu, %d failures, %.2f s\n", name, static_cast<unsigned long long>(seed),
                failures.load(), seconds_since(start));
    std::fflush(stdout);
  }
  if (!found) std::printf("no case '%s'\n", wanted.c_str());
  return found && failures == 0 ? 0 : 1;
}

}  // namespace fastcomm::testing
