// CUDA's implementation of the functions that tensors/accelerator.h declares.
#if defined(FC_WITH_CUDA)
#include "core/device_guard.h"
#include "tensors/accelerator.h"
#include "tensors/captures.h"

#include <ATen/cuda/PeerToPeerAccess.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <exception>
#include <map>
#include <mutex>
#include <utility>

namespace fastcomm {
namespace {

/// The message of an error of torch, without the trace of torch's calls that follows it.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Lets torch map its memory on `peer` for `device`. Returns "" or the reason why it does not.
std::string ask_torch(int device, int peer) {
  try {
    if (c10::cuda::CUDACachingAllocator::name() == "pluggable") {
      return "torch's allocator is a pluggable one, which maps nothing for other devices";
    }
    if (at::cuda::get_p2p_access(static_cast<at::DeviceIndex>(device),
                                 static_cast<at::DeviceIndex>(peer))) {
      return "";
    }
    return concat("torch finds no access from device ", device, " to device ", peer);
  } catch (const std::exception& error) {
    static_cast<void>(cudaGetLastError());  // else another library's next launch finds the error
    return concat("torch does not map memory of device ", peer, " for device ", device, ": ",
                  first_line(error.what()));
  }
}

}  // namespace

bool map_for_peers(int device, int peer, std::string& why_not) {
  // torch notes a mapping before it makes it, and claims it even after a failure: ask only once.
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::map<std::pair<int, int>, std::string>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [found, is_new] = known.try_emplace({device, peer});
  if (is_new) found->second = ask_torch(device, peer);
  why_not = found->second;
  return why_not.empty();
}

uint64_t capture_of(const c10::Stream& stream) {
  const DeviceGuard guard(stream.device_index());
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long number = 0;
  FC_CUDA(cudaStreamGetCaptureInfo(native_stream(stream), &status, &number), "device ",
          static_cast<int>(stream.device_index()));
  return status == cudaStreamCaptureStatusNone ? 0
                                               // CUDA may number a capture 0
                                               : number + 1;
}

bool is_external(const c10::Stream& stream) {
  // c10/cuda/CUDAStream.cpp: the id of a stream of torch's own is odd, or 0 for the default stream;
  // another's is its address.
  return stream.id() != 0 && (stream.id() & 1) == 0;
}

std::string device_name(int device) {
  cudaDeviceProp properties;
  FC_CUDA(cudaGetDeviceProperties(&properties, device), "device ", device);
  return properties.name;
}

}  // namespace fastcomm
#endif
