// Enough of CUDA to run a kernel on the host: every CUDA thread is a host thread, every block of a
// grid runs at once, __syncthreads is a barrier of mutex and condition variable, which
// ThreadSanitizer understands. A kernel runs on the thread of its stream (shim/runtime.h);
// where no devices have been configured, it has run when the launch returns, and ranks are host
// threads that launch at the same time, in one address range.
//
// For tests (FC_SHIM), with blocks of at most kMaxBlockThreads threads. What it cannot show: warps,
// the device's memory model, and anything that PTX does (core/hd.h has the twins).
#pragma once

#if !defined(FC_SHIM)
#error "shim/shim.h stands in for CUDA in builds with FC_SHIM alone"
#endif

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "shim/interleave.h"
#include "shim/runtime.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace fastcomm::shim {

constexpr unsigned kMaxBlockThreads = 8;

/// What the threads of a block have in common: the barrier and the __shared__ variables.
class Block {
 public:
  explicit Block(unsigned threads) : threads_(threads) {}

  /// Waits for all threads of the block; true if all of them voted true.
  bool barrier(bool vote) {
    fastcomm::interleave();
    std::unique_lock<std::mutex> lock(mutex_);
    if (executing != nullptr) told_.join(executing->clock);
    all_ = all_ && vote;
    if (++arrived_ == threads_) {
      arrived_ = 0;
      ++round_;
      known_ = told_;
      result_ = all_;  // nobody is in the next round yet, so nobody still reads the last result
      all_ = true;
      everybody_.notify_all();
    } else {
      const uint64_t round = round_;
      everybody_.wait(lock, [&] { return round_ != round; });
    }
    if (executing != nullptr) executing->behind_barrier(known_);
    return result_;
  }

  /// The block's storage for the variable known by `key`; not initialised, as on a device.
  void* shared(const void* key, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<std::max_align_t[]>& storage = shared_[key];
    if (storage == nullptr) {
      storage.reset(new std::max_align_t[bytes / sizeof(std::max_align_t) + 1]);
    }
    return storage.get();
  }

 private:
  const unsigned threads_;
  std::mutex mutex_;
  std::condition_variable everybody_;
  unsigned arrived_ = 0;
  uint64_t round_ = 0;
  bool all_ = true;
  bool result_ = true;
  WideClock told_;   // by threads that have arrived
  WideClock known_;  // to all when the round was over
  std::map<const void*, std::unique_ptr<std::max_align_t[]>> shared_;
};

inline thread_local Block* block = nullptr;

template <class T>
T* shared_array(const void* key, size_t count) {
  return static_cast<T*>(block->shared(key, count * sizeof(T)));
}

/// Runs the grid and waits for it. One-dimensional grids and blocks only.
template <class Kernel, class... Args>
void run_grid(Kernel kernel, dim3 grid, dim3 threads, const Args&... args) {
  std::deque<Block> blocks;
  for (unsigned b = 0; b < grid.x; ++b) blocks.emplace_back(threads.x);
  std::vector<std::thread> running;
  std::deque<Executing> all;  // where this process shares memory with others
  for (unsigned b = 0; b < grid.x; ++b) {
    for (unsigned t = 0; t < threads.x; ++t) {
      Executing* const self = executing == nullptr ? nullptr : &all.emplace_back(*executing);
      if (self != nullptr) {
        if (b >= kMostBlocks) throw std::invalid_argument("shim: a grid is too large");
        self->worker = block_worker(executing->worker, b);
        self->thread = thread_worker(self->worker, t);
        self->phase = 0;
      }
      running.emplace_back([&, self, b, t] {
        executing = self;
        block = &blocks[b];
        threadIdx = dim3(t);
        blockIdx = dim3(b);
        blockDim = threads;
        gridDim = grid;
        kernel(args...);
      });
    }
  }
  for (std::thread& thread : running) thread.join();
  for (const Executing& each : all) executing->clock.join(each.clock);
}

/// What a test may ask about its thread's last launch.
struct Launch {
  unsigned blocks;
  size_t parameter_bytes;
};
inline thread_local Launch last_launch{};

/// Arguments are copied, as a launch copies them. Returns the launch's own error.
template <class Kernel, class... Args>
cudaError_t launch(const char* file, const char* name, Kernel kernel, dim3 grid, dim3 threads,
                   cudaStream_t stream, const Args&... args) {
  if (threads.x > kMaxBlockThreads) throw std::invalid_argument("shim: a block is too large");
  last_launch = {grid.x, (sizeof(Args) + ...)};
  if (Runtime::get().empty.load(std::memory_order_relaxed)) {
    next_accesses.clear();  // of what came before
    next_skip = nullptr;
    return cudaSuccess;  // only the caller's own time is measured: nothing else is to cost
  }
  const std::string path(file);
  const std::string what = path.substr(path.rfind('/') + 1) + ": " + name;
  const cudaError_t result = submit(stream, what.c_str(), std::exchange(next_accesses, {}),
                                    [=] { run_grid(kernel, grid, threads, args...); });
  next_skip = nullptr;
  return result;
}

}  // namespace fastcomm::shim

inline void __syncthreads() { fastcomm::shim::block->barrier(true); }
inline int __syncthreads_and(int vote) { return fastcomm::shim::block->barrier(vote != 0); }

#define FC_SHARED(type, name, count) \
  static const char name##_key = 0;  \
  type* const name = ::fastcomm::shim::shared_array<type>(&name##_key, count)

#define FC_LAUNCH(kernel, grid, block, stream, ...) \
  ::fastcomm::shim::launch(__FILE__, #kernel, kernel, grid, block, stream, __VA_ARGS__)

// What launchers ask about a kernel.
struct cudaFuncAttributes {};
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel) {
  return cudaSuccess;
}
namespace fastcomm::shim {
inline std::atomic<int> blocks_per_processor{1};  // of every kernel
inline std::atomic<int> occupancy_questions{0};   // so far
}  // namespace fastcomm::shim
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int, size_t) {
  ++fastcomm::shim::occupancy_questions;
  *blocks = fastcomm::shim::blocks_per_processor;
  return cudaSuccess;
}
