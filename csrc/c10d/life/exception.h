// Errors of the lower layers as Python exceptions.
//
// torch turns a C++ exception into a Python one in several places. All of them keep the type of an
// exception that derives from torch::PyTorchError, also the autograd engine on the way out of
// backward(), which makes a plain pybind-registered exception a RuntimeError.
#pragma once

#include <Python.h>
#include <torch/csrc/Exceptions.h>

#include <exception>
#include <string>

#include "core/error.h"

namespace fastcomm {

class TorchError : public torch::PyTorchError {
 public:
  TorchError(ErrorCode code, std::string message)
      : torch::PyTorchError(std::move(message)), code_(code) {}
  /// The class of fastcomm/errors.py passed to register_error_type(). Needs the GIL.
  PyObject* python_type() override;
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

/// A fastcomm::Error as a TorchError; any other unchanged.
std::exception_ptr as_torch_error(const std::exception_ptr& error);

/// A raised Python exception as a TorchError if it is one of fastcomm's, else nullptr. Needs the
/// GIL.
std::exception_ptr as_torch_error(PyObject* type, PyObject* value);

/// The code of an Error or a TorchError; kPoisoned of any other.
ErrorCode code_of(const std::exception_ptr& error);

/// Its text, without a stack trace.
std::string what_of(const std::exception_ptr& error);

/// The error of a call of `operation` after the group has failed with `failure`, one of our errors.
std::exception_ptr come_after(const std::exception_ptr& failure, const char* operation);

/// Sets the Python class of a code; keeps a reference for ever. Needs the GIL.
void register_error_type(ErrorCode code, PyObject* type);

/// Runs `body`, letting fastcomm::Error out as TorchError.
template <class Body>
auto translating(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const Error& error) {
    throw TorchError(error.code(), error.what());
  }
}

/// The exception of `body`, for code that ends an operation: another thread may be waiting for
/// that.
template <class Body>
std::exception_ptr caught(const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (...) {
    return as_torch_error(std::current_exception());
  }
}

}  // namespace fastcomm
