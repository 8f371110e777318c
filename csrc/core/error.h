// The one exception type of the torch-free layers, and the checks that raise it.
//
// A message says what happened, where (operation, rank, sizes) and what to do.
// c10d/life/exception.h turns the code into the Python class of the same name.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace fastcomm {

enum class ErrorCode : int {
  kInvalidArgument = 0,  // the caller's mistake, nothing was sent
  kUnsupported = 1,      // valid, but not implemented
  kSystem = 2,           // a system call failed
  kMismatch = 3,         // the ranks called different operations
  kTimeout = 4,          // not every rank arrived in time
  kPeerLost = 5,         // a peer died
  kPeerLeft = 6,         // a peer destroyed its group earlier
  kPoisoned = 7,         // the group failed earlier
  kForked = 8,           // used in a child of fork()
};

/// The code that a rank raises for a failure that a peer tells: the same on all ranks for the same
/// cause, even if another rank noticed it first.
inline ErrorCode as_told(ErrorCode cause) {
  switch (cause) {
    case ErrorCode::kMismatch:
    case ErrorCode::kTimeout:
    case ErrorCode::kPeerLost:
    case ErrorCode::kPeerLeft:
      return cause;
    default:
      return ErrorCode::kPoisoned;
  }
}

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// Joins its arguments with operator<<.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// Text for the current errno: "write: No space left on device (errno 28)", then advice, if any.
std::string errno_text(const char* call);

}  // namespace fastcomm

/// Raises Error(kInvalidArgument) with the joined parts unless `condition` holds.
#define FC_CHECK(condition, ...)                                       \
  do {                                                                 \
    if (!(condition))                                                  \
      throw ::fastcomm::Error(::fastcomm::ErrorCode::kInvalidArgument, \
                              ::fastcomm::concat(__VA_ARGS__));        \
  } while (0)

/// Raises Error(kSystem) with the call's name and errno unless `condition` holds.
#define FC_SYSCALL(condition, call)                                                          \
  do {                                                                                       \
    if (!(condition))                                                                        \
      throw ::fastcomm::Error(::fastcomm::ErrorCode::kSystem, ::fastcomm::errno_text(call)); \
  } while (0)
