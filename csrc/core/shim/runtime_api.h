// The functions of the CUDA runtime that this project calls, over core/shim/runtime.h.
#pragma once

#include "core/shim/runtime.h"

inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorPeerAccessUnsupported:
      return "peer access is not supported between these two devices";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorPeerAccessAlreadyEnabled:
      return "peer access is already enabled";
    default:
      return "unknown error";
  }
}
inline cudaError_t cudaPeekAtLastError() { return fastcomm::shim::last_error; }
inline cudaError_t cudaGetLastError() {
  return std::exchange(fastcomm::shim::last_error, cudaSuccess);
}

// Devices.
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = fastcomm::shim::Runtime::get().devices();
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = fastcomm::shim::current_device;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= fastcomm::shim::Runtime::get().devices()) {
    return fastcomm::shim::fail(cudaErrorInvalidDevice);
  }
  fastcomm::shim::set_device(device);
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, int, int) {
  *value = 3;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = fastcomm::shim::Runtime::get().can_access(device, peer);
  return cudaSuccess;
}
inline cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  fastcomm::shim::need_context();
  const cudaError_t result =
      fastcomm::shim::Runtime::get().enable(fastcomm::shim::current_device, peer);
  return result == cudaSuccess ? result : fastcomm::shim::fail(result);
}

// Memory. Freed at once: nothing may be under way.
inline cudaError_t cudaMalloc(void** memory, size_t bytes) {
  fastcomm::shim::need_context();
  *memory = fastcomm::shim::Runtime::get().allocate(bytes, fastcomm::shim::current_device);
  return *memory != nullptr ? cudaSuccess : fastcomm::shim::fail(cudaErrorMemoryAllocation);
}
inline cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  fastcomm::shim::need_context();
  *memory = fastcomm::shim::Runtime::get().allocate(bytes, -1);
  return *memory != nullptr ? cudaSuccess : fastcomm::shim::fail(cudaErrorMemoryAllocation);
}
inline cudaError_t cudaFree(void* memory) { return fastcomm::shim::Runtime::get().free(memory); }
inline cudaError_t cudaFreeHost(void* memory) {
  return fastcomm::shim::Runtime::get().free(memory);
}
inline cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t stream) {
  return fastcomm::shim::submit(stream, [=] { std::memcpy(dst, src, bytes); });
}
inline cudaError_t cudaMemsetAsync(void* dst, int value, size_t bytes, cudaStream_t stream) {
  return fastcomm::shim::submit(stream, [=] { std::memset(dst, value, bytes); });
}

// Streams.
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  fastcomm::shim::need_context();
  *stream = new fastcomm::shim::Stream(fastcomm::shim::current_device);
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  stream->close();
  delete stream;
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  fastcomm::shim::Stream* const target = fastcomm::shim::Runtime::get().resolve(stream);
  if (target == nullptr) return cudaSuccess;
  auto* const done = new fastcomm::shim::Signal;  // not freed: raise() touches it to the end
  target->enqueue([done] { done->raise(); });
  done->wait();
  return cudaSuccess;
}

// Events.
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  fastcomm::shim::need_context();
  *event = new fastcomm::shim::Event(fastcomm::shim::current_device);
  ++fastcomm::shim::Runtime::get().allocations;
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  fastcomm::shim::Stream* const target = fastcomm::shim::Runtime::get().resolve(stream);
  if (target == nullptr) return cudaSuccess;
  if (event->device != target->device()) {
    return fastcomm::shim::fail(cudaErrorInvalidResourceHandle);
  }
  auto* const done = new fastcomm::shim::Signal;
  event->recorded.store(done);
  target->enqueue([done] { done->raise(); });
  return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  fastcomm::shim::Stream* const target = fastcomm::shim::Runtime::get().resolve(stream);
  const fastcomm::shim::Signal* const awaited = event->recorded.load();
  if (target != nullptr && awaited != nullptr) target->enqueue([awaited] { awaited->wait(); });
  return cudaSuccess;
}
inline cudaError_t cudaEventQuery(cudaEvent_t event) {
  const fastcomm::shim::Signal* const awaited = event->recorded.load();
  return awaited == nullptr || awaited->raised() ? cudaSuccess : cudaErrorNotReady;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const fastcomm::shim::Signal* const awaited = event->recorded.load();
  if (awaited != nullptr) awaited->wait();
  return cudaSuccess;
}
