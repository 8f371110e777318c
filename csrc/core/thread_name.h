// Names of threads, as ps -T, top -H, gdb and py-spy show them.
#pragma once

#include <pthread.h>

namespace fastcomm {

/// Names the calling thread. A name too long for the kernel does not compile.
template <size_t kSize>
void name_thread(const char (&name)[kSize]) {
  static_assert(kSize <= 16, "at most 15 characters");
  pthread_setname_np(pthread_self(), name);
}

}  // namespace fastcomm
