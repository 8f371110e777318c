// Names of threads, as ps -T, top -H, gdb and py-spy show them.
#pragma once

#include <pthread.h>

namespace fastcomm {

/// A literal. One too long for the kernel does not compile.
struct ThreadName {
  template <size_t kSize>
  ThreadName(const char (&literal)[kSize]) : text(literal) {
    static_assert(kSize <= 16, "at most 15 characters");
  }
  const char* text;
};

/// Names the calling thread.
inline void name_thread(ThreadName name) { pthread_setname_np(pthread_self(), name.text); }

}  // namespace fastcomm
