// Python's lock, for those who wait.
#pragma once

#include <Python.h>

namespace fastcomm {

/// Releases the GIL while it lives, if the thread holds it. Python's own calls of torch come
/// without it; compiled C++ (AOTInductor, inductor's cpp_wrapper) calls and waits with it.
class WithoutGil {
 public:
  WithoutGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace fastcomm
