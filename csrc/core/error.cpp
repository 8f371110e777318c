#include "core/error.h"

#include <cerrno>
#include <cstring>

namespace fastcomm {
namespace {

/// Advice to the user about a system error.
const char* advice(int error) {
  switch (error) {
    case EMFILE:
      return "; raise the limit of open files (ulimit -n)";
    case EFBIG:
      return "; raise the limit of file sizes (ulimit -f), or lower FASTCOMM_SEGMENT_MB";
    case ENOMEM:
      return "; free memory, raise the limit of address space (ulimit -v), or lower "
             "FASTCOMM_SEGMENT_MB";
    case ENOSPC:
      return "; make /dev/shm larger, or set FASTCOMM_TRANSPORT=memfd";
    default:
      return "";
  }
}

}  // namespace

std::string errno_text(const char* call) {
  const int error = errno;
  return concat(call, ": ", std::strerror(error), " (errno ", error, ")", advice(error));
}

}  // namespace fastcomm
