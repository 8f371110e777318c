#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "core/cuda_context.h"

#if defined(FC_SHIM)
#include "shim/runtime.h"

namespace fastcomm {

bool has_context(int device) { return shim::contexts[device]; }

bool push_context(int device) {
  if (device < 0 || device >= shim::Runtime::get().devices()) return false;
  shim::push_device(device);
  return true;
}

void pop_context() { shim::pop_device(); }

}  // namespace fastcomm
#else
#include <map>
#include <mutex>

#include "core/cuda_driver.h"

namespace fastcomm {
namespace {

/// The driver's functions; all or none of them are found.
struct Driver {
  decltype(&cuInit) init = nullptr;
  decltype(&cuDevicePrimaryCtxGetState) state = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
  decltype(&cuCtxPushCurrent) push = nullptr;
  decltype(&cuCtxPopCurrent) pop = nullptr;
  bool usable = false;

  Driver() {
    usable = find_driver_function("cuInit", &init) &&
             find_driver_function("cuDevicePrimaryCtxGetState", &state) &&
             find_driver_function("cuDevicePrimaryCtxRetain", &retain) &&
             find_driver_function("cuCtxPushCurrent", &push) &&
             find_driver_function("cuCtxPopCurrent", &pop) && init(0) == CUDA_SUCCESS;
  }
};

const Driver& driver() {
  static const Driver driver;
  return driver;
}

/// Retained once per device and never released: others allocate in it, and the last release
/// destroys it.
CUcontext primary_context(int device) {
  static std::mutex mutex;
  static auto& known = *new std::map<int, CUcontext>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(device);
  if (found != known.end()) return found->second;
  CUcontext context = nullptr;
  if (driver().retain(&context, device) != CUDA_SUCCESS) return nullptr;
  return known[device] = context;
}

}  // namespace

bool has_context(int device) {
  if (!driver().usable) return true;
  unsigned flags = 0;
  int active = 0;
  return driver().state(device, &flags, &active) != CUDA_SUCCESS || active != 0;
}

bool push_context(int device) {
  if (!driver().usable) return false;
  const CUcontext context = primary_context(device);
  return context != nullptr && driver().push(context) == CUDA_SUCCESS;
}

void pop_context() {
  CUcontext popped = nullptr;
  static_cast<void>(driver().pop(&popped));
}

}  // namespace fastcomm
#endif
#endif
