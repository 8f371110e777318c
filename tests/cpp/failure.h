// How an operation ended.
#pragma once

#include <exception>
#include <string>

#include "check.h"
#include "coll/operation.h"

namespace fastcomm::testing {

struct Failure {
  bool failed = false;
  ErrorCode code{};
  std::string text;
};

/// Of an operation that is done.
inline Failure failure_of(const Operation& operation) {
  Failure failure;
  if (operation.error() == nullptr) return failure;
  failure.text = error_of([&] { std::rethrow_exception(operation.error()); }, &failure.code);
  failure.failed = true;
  return failure;
}

}  // namespace fastcomm::testing
