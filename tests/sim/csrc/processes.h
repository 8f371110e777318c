// Tensors on memory of another process's devices, and what orders their uses: flags in that memory,
// stored and awaited by streams, and messages between hosts.
#pragma once

#include <ATen/ops/from_blob.h>

#include <cstring>
#include <string>

#include "core/hd.h"
#include "device.h"
#include "shim/host_message.h"

namespace sim {

/// The handle by which other processes open the tensor's memory: all of it, so it has to be whole.
inline std::string handle_of(const at::Tensor& tensor) {
  TORCH_CHECK(is_sim(tensor) && tensor.storage_offset() == 0, "sim: a handle is of whole memory");
  const OnDevice on(tensor.device().index());
  cudaIpcMemHandle_t handle;
  must(cudaIpcGetMemHandle(&handle, tensor.storage().mutable_data()), "cudaIpcGetMemHandle");
  return std::string(handle.reserved, sizeof(handle.reserved));
}

/// The first `bytes` of what another process exports, mapped for a device until the tensor's memory
/// is freed.
inline at::Tensor open_handle(const std::string& text, int64_t bytes, int device) {
  cudaIpcMemHandle_t handle;
  TORCH_CHECK(text.size() == sizeof(handle.reserved), "sim: no handle");
  std::memcpy(handle.reserved, text.data(), text.size());
  const OnDevice on(device);
  void* memory = nullptr;
  must(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess),
       "cudaIpcOpenMemHandle");
  const auto close = [device](void* memory) {
    const OnDevice on(device);
    static_cast<void>(cudaIpcCloseMemHandle(memory));
  };
  const c10::Device place(kSim, static_cast<c10::DeviceIndex>(device));
  return at::for_blob(memory, {bytes})
      .deleter(close)
      .options(at::TensorOptions().dtype(at::kByte).device(place))
      .target_device(place)
      .make_tensor();
}

inline uint32_t* flag_of(const at::Tensor& flag) {
  TORCH_CHECK(is_sim(flag) && flag.scalar_type() == at::kInt && flag.numel() == 1,
              "sim: a flag is one int32 of a device");
  return reinterpret_cast<uint32_t*>(Arena::get().on_host(flag.const_data_ptr()));
}

/// The device's current stream stores a flag, after what it was given before.
inline void store_flag(const at::Tensor& flag, uint32_t value) {
  launch(current_stream(flag.device().index()), "a flag is stored", {},
         [word = flag_of(flag), value] { fastcomm::store_flag(word, value); });
}

/// The device's current stream waits until a flag has reached a value, for a minute at most.
inline void await_flag(const at::Tensor& flag, uint32_t value) {
  launch(current_stream(flag.device().index()), "a flag is awaited", {},
         [word = flag_of(flag), value] {
           const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(5);
           while (!fastcomm::reached(fastcomm::load_flag(word), value)) {
             TORCH_CHECK(std::chrono::steady_clock::now() < end, "sim: nobody has stored ", value);
             usleep(50);
           }
         });
}

}  // namespace sim
