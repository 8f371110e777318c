// How long kernels take on a device, and not their launches: a sample is queued as a whole behind a
// kernel that waits, so that the device never waits for the host between two calls.
//
// Whether the wait was long enough is asked of the event behind it once everything is queued; a
// sample that began too early is taken again behind a longer wait.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/hd.h"
#include "cuda_memory.h"
#include "kernels/cuda_api.h"

namespace fastcomm::benchmarks {

/// The value below which `share` of the sorted `values` lie.
inline double quantile(const std::vector<double>& values, double share) {
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(share * last + 0.5)];
}

struct Spread {
  double min_us, median_us;
  double spread;  // the middle half of the samples: its width as a share of the median
};

inline Spread summed_up(std::vector<double> us) {
  std::sort(us.begin(), us.end());
  const double median = quantile(us, 0.5);
  return {us.front(), median, (quantile(us, 0.75) - quantile(us, 0.25)) / median};
}

/// Occupies one thread for so long by the device's own clock.
__global__ void wait_nanoseconds(uint64_t duration) {
  const uint64_t begin = clock_ns();
  while (clock_ns() - begin < duration) {
  }
}

class DeviceClock {
 public:
  explicit DeviceClock(cudaStream_t stream) : stream_(stream) {
    must(cudaEventCreate(&begin_), "cudaEventCreate");
    must(cudaEventCreate(&end_), "cudaEventCreate");
  }
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;
  ~DeviceClock() {
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaEventDestroy(end_));
  }

  /// Microseconds of one call, of `repeats` that follow each other; fewer than the launch queue
  /// holds.
  template <class Call>
  double microseconds(int repeats, const Call& call) {
    for (;;) {
      FC_LAUNCH(wait_nanoseconds, 1, 1, stream_, wait_ns_);
      must(cudaGetLastError(), "wait_nanoseconds");
      must(cudaEventRecord(begin_, stream_), "cudaEventRecord");
      for (int i = 0; i < repeats; ++i) call();
      must(cudaEventRecord(end_, stream_), "cudaEventRecord");
      const cudaError_t begun = cudaEventQuery(begin_);
      if (begun != cudaErrorNotReady) must(begun, "cudaEventQuery");
      must(cudaEventSynchronize(end_), "cudaEventSynchronize");
      static_cast<void>(cudaGetLastError());  // "not ready" is no error
      float ms = 0;
      must(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
      if (begun == cudaErrorNotReady) return ms * 1000 / repeats;
      wait_ns_ *= 2;
      if (wait_ns_ > kLongestWait) {
        std::fprintf(stderr, "%d calls take the host longer than %llu ms\n", repeats,
                     static_cast<unsigned long long>(kLongestWait / 1'000'000));
        std::exit(1);
      }
    }
  }

 private:
  static constexpr uint64_t kLongestWait = 1'000'000'000;
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  uint64_t wait_ns_ = 200'000;
};

}  // namespace fastcomm::benchmarks
