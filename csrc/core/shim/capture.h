// Stream capture under the execution shim, as far as host code asks about it: a test says that streams
// are captured; nothing is recorded.
#pragma once

#include <atomic>

#include "core/shim/runtime.h"

enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};

namespace fastcomm::shim {
inline std::atomic<bool> capturing{false};  // every stream
inline thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
}  // namespace fastcomm::shim

inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = fastcomm::shim::capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, fastcomm::shim::capture_mode);
  return cudaSuccess;
}
