// Number of blocks of a kernel that a device holds at once: the cap of a grid.
//
// A grid of more blocks than are resident runs in waves, and the last of them leaves most of the
// device idle; kernels whose blocks take chunks in turn (kernels/cuda/chunks.h) need no more. The
// number follows from the kernel's registers and shared memory, so the runtime is asked, once per
// kernel, block size and device. Cost: a lock and a look-up per launch.
#pragma once

#include <map>
#include <mutex>
#include <tuple>

#include "core/cuda_host.h"
#include "kernels/cuda_api.h"

namespace fastcomm {

/// Blocks of `threads` threads that the current device holds of `kernel` at once; may be 0. Loads
/// the kernel on the first call. Any thread may call it. Raises Error(kSystem).
template <class Kernel>
int resident_blocks(Kernel kernel, int threads) {
  static std::mutex mutex;
  static std::map<std::tuple<Kernel, int, int>, int> known;
  int device = 0;
  FC_CUDA(cudaGetDevice(&device), "to launch a kernel");
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find({kernel, threads, device});
  if (found != known.end()) return found->second;
  int processors = 0, each = 0;
  FC_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
          "to launch a kernel");
  FC_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, 0),
          "to launch a kernel");
  return known[{kernel, threads, device}] = processors * each;
}

/// While it lives, this thread's launches whose grids may have any size have at most `blocks`
/// blocks: operations that run beside a model's own kernels leave room for those.
class GridLimit {
 public:
  /// 0 means no limit.
  explicit GridLimit(int blocks) : before_(current()) { current() = blocks; }
  GridLimit(const GridLimit&) = delete;
  GridLimit& operator=(const GridLimit&) = delete;
  ~GridLimit() { current() = before_; }

  static int& current() {
    static thread_local int blocks = 0;
    return blocks;
  }

 private:
  const int before_;
};

}  // namespace fastcomm
