// How an operation ended, and what else tests of failures need.
#pragma once

#include <exception>
#include <string>
#include <thread>

#include "check.h"

namespace fastcomm::testing {

struct Failure {
  bool failed = false;
  ErrorCode code{};
  std::string text;
};

/// The failure of an operation, or a send or a receive, that is done.
template <class AnyOperation>
Failure failure_of(const AnyOperation& operation) {
  Failure failure;
  if (operation.error() == nullptr) return failure;
  failure.text = error_of([&] { std::rethrow_exception(operation.error()); }, &failure.code);
  failure.failed = true;
  return failure;
}

inline bool names(const std::string& text, int rank) {
  return text.find(concat("rank ", rank)) != std::string::npos;
}

inline void pause(uint64_t microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

}  // namespace fastcomm::testing
