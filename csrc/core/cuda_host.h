// CUDA for host code: the runtime, or the execution shim in its place (FC_SHIM), with errors as
// exceptions.
//
// Only in builds with FC_WITH_CUDA or FC_SHIM. Device code starts from kernels/cuda_api.h.
#pragma once

#if defined(FC_SHIM)
#include "shim/ipc.h"
#include "shim/runtime.h"
#else
#include <cuda_runtime_api.h>
#endif

#include <cstdint>
#include <string>

#include "core/control.h"
#include "core/error.h"

namespace fastcomm {

// Errors. The runtime keeps the last error of a thread until it is asked for. Several libraries use
// one thread, so that error may be anyone's. Hence the rules:
//
//   - A reported error is the one that our own call returned, launches too (FC_LAUNCH). The last
//     error is never used to find out whether one of our calls has failed.
//   - An error of our own call is cleared, reported or not (forget_error), since the next library
//     to ask would take it for its own. An error that was there before stays, for its own library.
//   - Errors that CUDA keeps for good, such as an illegal address, cannot be cleared. Every later
//     call returns them, and ours report them, like everyone's.

/// Clears `error`, which our own call returned, from the runtime's last error. Another error stays.
inline void forget_error(cudaError_t error) {
  if (cudaPeekAtLastError() == error) static_cast<void>(cudaGetLastError());
}

/// "cudaHostAlloc: out of memory (device 1)"; `expression` is the text of the failed call. Clears
/// the error.
inline std::string cuda_error_text(cudaError_t error, const char* expression) {
  forget_error(error);
  const std::string call(expression);
  int device = -1;
  static_cast<void>(cudaGetDevice(&device));
  return concat(call.substr(0, call.find('(')), ": ", cudaGetErrorString(error), " (device ",
                device, ")");
}

/// The address that a kernel on `device` sees for `pointer`. With real GPUs it is the same. The
/// shim has one memory for all, and models here memory that a device cannot reach or sees wrong.
/// kSpoil is a write for which no order with other processes is promised.
enum class Touch { kRead, kWrite, kSpoil };
template <class T>
T* device_view([[maybe_unused]] int device, T* pointer, [[maybe_unused]] Touch touch) {
#if defined(FC_SHIM)
  const shim::Use use = touch == Touch::kRead ? shim::Use::kRead : shim::Use::kWrite;
  return reinterpret_cast<T*>(shim::Runtime::get().view(device, pointer, use));
#else
  return pointer;
#endif
}

/// As device_view, for the kernel launched next on the current device, which uses `bytes` there. It
/// also tells the shim the memory that a launch uses, since the launched kernel cannot be asked.
template <class T>
T* kernel_view(T* pointer, [[maybe_unused]] uint64_t bytes, [[maybe_unused]] Touch touch) {
#if defined(FC_SHIM)
  if (pointer == nullptr || bytes == 0) return pointer;
  if (shim::Runtime::get().empty.load(std::memory_order_relaxed)) return pointer;
  shim::next_accesses.push_back(
      {reinterpret_cast<uintptr_t>(pointer), bytes, touch != Touch::kRead, touch == Touch::kSpoil});
  return device_view(shim::current_device, pointer, touch);
#else
  return pointer;
#endif
}

/// As kernel_view, for a word that makes the kernel launched next do nothing, and so use nothing,
/// if it is not zero when that kernel starts.
inline const uint32_t* kernel_skip([[maybe_unused]] const uint32_t* word) {
#if defined(FC_SHIM)
  word = kernel_view(word, sizeof(*word), Touch::kRead);
  shim::next_skip = FC_LEFT_OUT(Control::kWorkOn) ? nullptr : word;
#endif
  return word;
}

}  // namespace fastcomm

/// Raises Error(kSystem) unless a call of the CUDA runtime succeeds. Further arguments describe its
/// purpose, sizes included.
#define FC_CUDA(call, ...)                                                                       \
  do {                                                                                           \
    const cudaError_t fc_result = (call);                                                        \
    if (fc_result != cudaSuccess)                                                                \
      throw ::fastcomm::Error(                                                                   \
          ::fastcomm::ErrorCode::kSystem,                                                        \
          ::fastcomm::concat(::fastcomm::cuda_error_text(fc_result, #call), ": ", __VA_ARGS__)); \
  } while (0)

namespace fastcomm {

/// Enqueues work on a stream of its own, on the current device, and waits for it. `enqueue(stream)`
/// returns CUDA's error code. Raises Error(kSystem) that `what` was not possible.
template <class Enqueue>
void enqueue_and_wait(const char* what, const Enqueue& enqueue) {
  cudaStream_t stream = nullptr;
  FC_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream for ", what);
  const cudaError_t enqueued = enqueue(stream);
  const cudaError_t waited = cudaStreamSynchronize(stream);
  forget_error(cudaStreamDestroy(stream));
  FC_CUDA(enqueued, what);
  FC_CUDA(waited, what);
}

}  // namespace fastcomm
