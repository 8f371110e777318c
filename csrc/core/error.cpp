#include "core/error.h"

#include <cerrno>
#include <cstring>

namespace fastcomm {

std::string errno_text(const char* call) {
  const int error = errno;
  return concat(call, ": ", std::strerror(error), " (errno ", error, ")");
}

}  // namespace fastcomm
