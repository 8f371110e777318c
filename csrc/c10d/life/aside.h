// Objects that are destroyed on a thread of their own, since their destructors may wait.
#pragma once

#include <Python.h>

#include <memory>
#include <system_error>
#include <thread>
#include <utility>

namespace fastcomm {

/// Drops what `pointer` holds on a thread of its own: Gloo's destructors wait for messages under
/// way, of which one may end with its timeout. Left behind if the interpreter ends, which such a
/// thread must not need any more.
template <class Pointer>
void let_go_aside(Pointer pointer) {
  if (!Py_IsInitialized()) return static_cast<void>(new Pointer(std::move(pointer)));
  try {
    std::thread([held = std::make_shared<Pointer>(std::move(pointer))] {
      *held = Pointer();
    }).detach();
  } catch (const std::system_error&) {  // dropped here
  }
}

}  // namespace fastcomm
