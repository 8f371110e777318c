#include "c10d/life/exception.h"

#include <c10/util/Exception.h>

#include <array>

#include "engines/cpu/communicator.h"

namespace fastcomm {
namespace {

constexpr int kCodes = static_cast<int>(ErrorCode::kForked) + 1;
std::array<PyObject*, kCodes> g_types{};

}  // namespace

PyObject* TorchError::python_type() {
  PyObject* type = g_types[static_cast<int>(code_)];
  return type == nullptr ? PyExc_RuntimeError : type;
}

std::exception_ptr as_torch_error(const std::exception_ptr& error) {
  if (error == nullptr) return nullptr;
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return std::make_exception_ptr(TorchError(e.code(), e.what()));
  } catch (...) {
    return error;
  }
}

std::exception_ptr as_torch_error(PyObject* type, PyObject* value) {
  for (int code = 0; code < kCodes; ++code) {
    if (g_types[code] != type) continue;
    PyObject* text = PyObject_Str(value);
    const char* words = text == nullptr ? nullptr : PyUnicode_AsUTF8(text);
    const std::string message = words == nullptr ? "" : words;
    PyErr_Clear();
    Py_XDECREF(text);
    return std::make_exception_ptr(TorchError(static_cast<ErrorCode>(code), message));
  }
  return nullptr;
}

ErrorCode code_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.code();
  } catch (const TorchError& e) {
    return e.code();
  } catch (...) {
    return ErrorCode::kPoisoned;
  }
}

std::string what_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& torch_error) {
    return torch_error.what_without_backtrace();
  } catch (const std::exception& other) {
    return other.what();
  } catch (...) {
    return "unknown error";
  }
}

std::exception_ptr come_after(const std::exception_ptr& failure, const char* operation) {
  return come_after(code_of(failure), what_of(failure), operation);
}

void register_error_type(ErrorCode code, PyObject* type) {
  Py_INCREF(type);
  g_types.at(static_cast<size_t>(code)) = type;
}

}  // namespace fastcomm
