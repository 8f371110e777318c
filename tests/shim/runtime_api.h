// Functions of the CUDA runtime that this project calls, over shim/runtime.h.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "shim/submit.h"

/// Linkage of these functions: tests/ptx/cudart.cpp has them under CUDA's own names.
#if !defined(FC_API)
#define FC_API inline
#endif

FC_API const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorDeviceUninitialized:
      return "invalid device context";
    case cudaErrorMapBufferObjectFailed:
      return "mapping of buffer object failed";
    case cudaErrorPeerAccessUnsupported:
      return "peer access is not supported between these two devices";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorPeerAccessAlreadyEnabled:
      return "peer access is already enabled";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    case cudaErrorHostMemoryNotRegistered:
      return "pointer does not correspond to a registered memory region";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnjoined:
      return "capturing stream has unjoined work";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    case cudaErrorStreamCaptureImplicit:
      return "operation would make the legacy stream depend on a capturing blocking stream";
    default:
      return "unknown error";
  }
}
FC_API cudaError_t cudaPeekAtLastError() { return fastcomm::shim::last_error; }
FC_API cudaError_t cudaGetLastError() {
  return std::exchange(fastcomm::shim::last_error, cudaSuccess);
}

// Devices.
FC_API cudaError_t cudaGetDeviceCount(int* count) {
  *count = fastcomm::shim::Runtime::get().devices();
  return cudaSuccess;
}
FC_API cudaError_t cudaGetDevice(int* device) {
  *device = fastcomm::shim::current_device;
  return cudaSuccess;
}
FC_API cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= fastcomm::shim::Runtime::get().devices()) {
    return fastcomm::shim::fail(cudaErrorInvalidDevice);
  }
  fastcomm::shim::set_device(device);
  return cudaSuccess;
}
FC_API cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int device) {
  if (attribute == cudaDevAttrMultiProcessorCount) {
    *value = 3;
  } else if (attribute == cudaDevAttrKernelExecTimeout) {
    *value = static_cast<int>(fastcomm::shim::Runtime::get().displays.count(device));
  } else {
    return fastcomm::shim::fail(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
FC_API cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = fastcomm::shim::Runtime::get().can_access(device, peer);
  return cudaSuccess;
}
FC_API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  if (fastcomm::shim::unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
  fastcomm::shim::need_context();
  const cudaError_t result =
      fastcomm::shim::Runtime::get().enable(fastcomm::shim::current_device, peer);
  return result == cudaSuccess ? result : fastcomm::shim::fail(result);
}
/// SIM_DRIVER is the CUDA version of the driver, 12010 for 12.1.
FC_API cudaError_t cudaDriverGetVersion(int* version) {
  const char* const driver = std::getenv("SIM_DRIVER");
  *version = driver != nullptr ? std::atoi(driver) : 13000;
  return cudaSuccess;
}
FC_API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
FC_API cudaError_t cudaDeviceGetPCIBusId(char* bus, int bytes, int device) {
  std::snprintf(bus, static_cast<size_t>(bytes), "0000:%02X:00.0", 0x10 + device);
  return cudaSuccess;
}

// Memory. It is freed at once, so no work that uses it may be under way.
FC_API cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (fastcomm::shim::unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
  fastcomm::shim::need_context();
  *memory = fastcomm::shim::Runtime::get().allocate(bytes, fastcomm::shim::current_device);
  return *memory != nullptr ? cudaSuccess : fastcomm::shim::fail(cudaErrorMemoryAllocation);
}
FC_API cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  if (fastcomm::shim::unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
  fastcomm::shim::need_context();
  *memory = fastcomm::shim::Runtime::get().allocate(bytes, -1);
  return *memory != nullptr ? cudaSuccess : fastcomm::shim::fail(cudaErrorMemoryAllocation);
}
FC_API cudaError_t cudaFree(void* memory) {
  if (fastcomm::shim::unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
  fastcomm::shim::pass_driver();
  return fastcomm::shim::Runtime::get().free(memory);
}
FC_API cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
FC_API cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  if (fastcomm::shim::unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
  fastcomm::shim::need_context();
  const cudaError_t result = fastcomm::shim::Runtime::get().register_host(memory, bytes);
  return result == cudaSuccess ? result : fastcomm::shim::fail(result);
}
FC_API cudaError_t cudaHostUnregister(void* memory) {
  if (fastcomm::shim::unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
  const cudaError_t result = fastcomm::shim::Runtime::get().unregister_host(memory);
  return result == cudaSuccess ? result : fastcomm::shim::fail(result);
}
FC_API cudaError_t cudaHostGetDevicePointer(void** there, void* memory, unsigned) {
  *there = memory;
  const bool known = fastcomm::shim::Runtime::get().find(memory).has_value();
  return known ? cudaSuccess : fastcomm::shim::fail(cudaErrorInvalidValue);
}
FC_API cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t stream) {
  using fastcomm::shim::Runtime;
  return fastcomm::shim::submit(
      stream, "cudaMemcpyAsync",
      {fastcomm::shim::reads(src, bytes), fastcomm::shim::writes(dst, bytes)},
      [to = Runtime::get().on_host(dst), from = Runtime::get().on_host(src), bytes] {
        std::memcpy(to, from, bytes);
      });
}
FC_API cudaError_t cudaMemsetAsync(void* dst, int value, size_t bytes, cudaStream_t stream) {
  return fastcomm::shim::submit(stream, "cudaMemsetAsync", {fastcomm::shim::writes(dst, bytes)},
                                [to = fastcomm::shim::Runtime::get().on_host(dst), value, bytes] {
                                  std::memset(to, value, bytes);
                                });
}

// Streams.
FC_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  fastcomm::shim::need_context();
  *stream = fastcomm::shim::Runtime::get().make_stream(fastcomm::shim::current_device);
  return cudaSuccess;
}
FC_API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  fastcomm::shim::Runtime::get().destroy(stream);
  return cudaSuccess;
}
FC_API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (fastcomm::shim::unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
  using fastcomm::shim::Order;
  fastcomm::shim::Stream* const target = fastcomm::shim::Runtime::get().resolve(stream);
  if (target == nullptr) return cudaSuccess;
  if (target->capture != nullptr) {
    target->capture->invalid = true;
    return fastcomm::shim::fail(cudaErrorStreamCaptureUnsupported);
  }
  const fastcomm::shim::Clock clock = Order::get().now(target->clock);
  auto* const done = new fastcomm::shim::Signal;  // not freed: raise() touches it to the end
  const uint64_t number = target->enqueue([done, progress = target->progress] {
    done->clock = progress->clock;
    done->raise();
  });
  done->wait();
  target->wait_for(number);
  Order::get().host_saw(clock);
  fastcomm::shim::WideHost::get().saw(done->clock);
  return cudaSuccess;
}
FC_API cudaError_t cudaDeviceSynchronize() {
  if (fastcomm::shim::unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
  if (fastcomm::shim::Capture::spoil(fastcomm::shim::current_device)) {
    return fastcomm::shim::fail(cudaErrorStreamCaptureUnsupported);
  }
  cudaError_t failure = cudaSuccess;
  fastcomm::shim::Runtime::get().each_stream(
      fastcomm::shim::current_device, [&](fastcomm::shim::Stream* stream) {
        const cudaError_t result = cudaStreamSynchronize(stream);
        if (result != cudaSuccess) failure = result;
      });
  return failure;
}
FC_API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (fastcomm::shim::unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
  using fastcomm::shim::Order;
  fastcomm::shim::Stream* const target = fastcomm::shim::Runtime::get().resolve(stream);
  if (target == nullptr) return cudaSuccess;
  if (target->capture != nullptr) {
    target->capture->invalid = true;
    return fastcomm::shim::fail(cudaErrorStreamCaptureUnsupported);
  }
  const fastcomm::shim::Clock clock = Order::get().now(target->clock);
  if (!target->idle()) return fastcomm::shim::fail(cudaErrorNotReady);
  Order::get().host_saw(clock);
  fastcomm::shim::WideHost::get().saw(target->progress->clock);
  return cudaSuccess;
}

// Events.
FC_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  fastcomm::shim::need_context();
  *event = new fastcomm::shim::Event(fastcomm::shim::current_device);
  ++fastcomm::shim::Runtime::get().allocations;
  return cudaSuccess;
}
FC_API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
FC_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  using fastcomm::shim::Order;
  if (fastcomm::shim::Runtime::get().empty.load(std::memory_order_relaxed)) return cudaSuccess;
  fastcomm::shim::Stream* const target = fastcomm::shim::Runtime::get().resolve(stream);
  if (target == nullptr) return cudaSuccess;
  if (event->device != target->device()) {
    return fastcomm::shim::fail(cudaErrorInvalidResourceHandle);
  }
  event->capture = target->capture;
  if (target->capture != nullptr) {
    target->capture->order.record(target->capture_clock, event->clock);
    return cudaSuccess;
  }
  auto* const done = new fastcomm::shim::Signal;  // not freed: streams may still wait for it
  Order::get().record(target->clock, event->clock);
  event->recorded.store(done);
  target->enqueue([done, progress = target->progress] {
    done->clock = progress->clock;
    done->raise();
  });
  return cudaSuccess;
}
FC_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  using fastcomm::shim::Order;
  fastcomm::shim::Stream* const target = fastcomm::shim::Runtime::get().resolve(stream);
  if (target == nullptr) return cudaSuccess;
  if (event->capture != nullptr) {
    if (stream == nullptr) return fastcomm::shim::fail(cudaErrorStreamCaptureImplicit);
    const bool other = target->capture != nullptr && target->capture != event->capture;
    if (event->capture->ended || other) {
      return fastcomm::shim::fail(cudaErrorStreamCaptureIsolation);
    }
    event->capture->join(target);
    event->capture->order.wait(target->capture_clock, event->clock);
    return cudaSuccess;
  }
  const fastcomm::shim::Signal* const awaited = event->recorded.load();
  if (awaited == nullptr) return cudaSuccess;
  if (target->capture != nullptr) return fastcomm::shim::fail(cudaErrorStreamCaptureIsolation);
  Order::get().wait(target->clock, event->clock);
  target->enqueue([awaited, progress = target->progress] {
    awaited->wait();
    progress->clock.join(awaited->clock);
  });
  return cudaSuccess;
}
FC_API cudaError_t cudaEventQuery(cudaEvent_t event) {
  fastcomm::shim::pass_driver();
  if (fastcomm::shim::unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
  if (event->capture != nullptr) {
    event->capture->invalid = true;
    return fastcomm::shim::fail(cudaErrorStreamCaptureUnsupported);
  }
  const fastcomm::shim::Signal* const awaited = event->recorded.load();
  if (awaited == nullptr) return cudaSuccess;
  if (!awaited->raised()) return cudaErrorNotReady;
  fastcomm::shim::Order::get().host_saw(event->clock);
  fastcomm::shim::WideHost::get().saw(awaited->clock);
  return cudaSuccess;
}
FC_API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (fastcomm::shim::unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
  if (event->capture != nullptr) {
    event->capture->invalid = true;
    return fastcomm::shim::fail(cudaErrorStreamCaptureUnsupported);
  }
  const fastcomm::shim::Signal* const awaited = event->recorded.load();
  if (awaited == nullptr) return cudaSuccess;
  awaited->wait();
  fastcomm::shim::Order::get().host_saw(event->clock);
  fastcomm::shim::WideHost::get().saw(awaited->clock);
  return cudaSuccess;
}
FC_API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const fastcomm::shim::Signal* const from = begin->recorded.load();
  const fastcomm::shim::Signal* const to = end->recorded.load();
  if (from == nullptr || to == nullptr) {
    return fastcomm::shim::fail(cudaErrorInvalidResourceHandle);
  }
  if (!from->raised() || !to->raised()) return fastcomm::shim::fail(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(to->when() - from->when()).count();
  return cudaSuccess;
}

// Graphs.
using cudaGraph_t = fastcomm::shim::Graph*;
using cudaGraphExec_t = const fastcomm::shim::Graph*;
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2
};

namespace fastcomm::shim {
inline cudaStreamCaptureStatus capture_status(const Stream* stream) {
  if (stream == nullptr || stream->capture == nullptr) return cudaStreamCaptureStatusNone;
  return stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                  : cudaStreamCaptureStatusActive;
}
}  // namespace fastcomm::shim

FC_API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = fastcomm::shim::capture_status(fastcomm::shim::Runtime::get().resolve(stream));
  return cudaSuccess;
}
/// Not for a device's default stream. Parameters with a default value in CUDA are left out.
inline cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                            unsigned long long* number) {
  fastcomm::shim::Stream* const target = fastcomm::shim::Runtime::get().resolve(stream);
  *status = fastcomm::shim::capture_status(target);
  if (*status == cudaStreamCaptureStatusActive) *number = target->capture->number;
  return cudaSuccess;
}
FC_API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr || stream->capture != nullptr) {
    return fastcomm::shim::fail(cudaErrorStreamCaptureUnsupported);
  }
  new fastcomm::shim::Capture(stream, mode);  // not freed: events may still name it
  return cudaSuccess;
}
FC_API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  fastcomm::shim::Capture* const capture = stream->capture;
  if (capture == nullptr || capture->origin != stream) {
    return fastcomm::shim::fail(cudaErrorInvalidValue);
  }
  const bool joined = capture->joined();
  capture->release();
  fastcomm::shim::Order::get().add_hazards(capture->order.take_hazards());
  const bool invalid = capture->invalid;
  *graph = joined && !invalid ? capture->graph : nullptr;
  if (invalid) return fastcomm::shim::fail(cudaErrorStreamCaptureInvalidated);
  return joined ? cudaSuccess : fastcomm::shim::fail(cudaErrorStreamCaptureUnjoined);
}
FC_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, uint64_t) {
  *exec = new fastcomm::shim::Graph(*graph);
  return cudaSuccess;
}
FC_API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const fastcomm::shim::Graph::Node& node : exec->nodes) {
    fastcomm::shim::next_skip = node.skip;
    const cudaError_t result = fastcomm::shim::submit(
        stream, ("replay of " + node.what).c_str(), node.accesses, [work = node.work] { work(); });
    fastcomm::shim::next_skip = nullptr;
    if (result != cudaSuccess) return result;
  }
  return cudaSuccess;
}
FC_API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
/// Launches may still be under way: they have copies of the graph's work.
FC_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
/// Per thread. Makes a context on the current device, as CUDA does.
FC_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  fastcomm::shim::need_context();
  std::swap(*mode, fastcomm::shim::capture_mode);
  return cudaSuccess;
}
