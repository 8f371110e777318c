// Bandwidth of the batched copy and reduction on one GPU, against cudaMemcpyAsync from device to
// device in the same run, and what a launch costs the host.
//
//   nvcc -std=c++17 -O3 -fmad=false -arch=native -Icsrc -o cuda_kernels \
//     benchmarks/cpp/cuda_kernels.cu csrc/kernels/cuda/multi_copy.cu \
//     csrc/kernels/cuda/multi_reduce.cu csrc/core/error.cpp
//   ./cuda_kernels > cuda-kernels.jsonl
//
// Prints JSON lines: the environment, then a row for each measurement.
//   "bandwidth"  `bytes` is what one source holds; `gbps` counts all that is read and written, at the
//                median of kRounds samples by CUDA events; each round takes one sample of every
//                method, in an order that turns. Every call moves on to the next place
//                within 256 MiB of each buffer, so that the second-level cache helps no size. At the
//                small sizes the host's time for a launch is the limit.
//   "launch"     `us` is the host's time for one call, the median over batches that stay below the
//                depth of the launch queue.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/multi_copy.h"
#include "kernels/cuda/multi_reduce.h"

namespace fastcomm {
namespace {

constexpr int kRounds = 21;
constexpr int kMaxSources = 8;
constexpr uint64_t kSmallest = uint64_t{64} << 10;
constexpr uint64_t kLargest = uint64_t{1} << 30;
constexpr uint64_t kSpread = uint64_t{256} << 20;

void must(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(result));
  std::exit(1);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// A row of kMaxSources + 1 buffers of kLargest bytes; as many of them as the device holds.
struct Buffers {
  std::vector<char*> sources;
  char* destination = nullptr;
};

Buffers allocate_buffers() {
  size_t free_bytes = 0, total = 0;
  must(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
  const auto buffer = [] {
    void* memory = nullptr;
    must(cudaMalloc(&memory, kLargest), "cudaMalloc");
    must(cudaMemset(memory, 0, kLargest), "cudaMemset");
    return static_cast<char*>(memory);
  };
  Buffers buffers;
  buffers.destination = buffer();
  while (buffers.sources.size() < kMaxSources &&
         free_bytes > (buffers.sources.size() + 3) * kLargest)
    buffers.sources.push_back(buffer());
  if (buffers.sources.empty()) must(cudaErrorMemoryAllocation, "a source of 1 GiB");
  return buffers;
}

struct Method {
  std::string name;
  int sources;
  std::string dtype;
  std::function<void(uint64_t at)> call;  // works `at` bytes into every buffer
  uint64_t place = 0;
  std::vector<double> us = {};
};

/// Times every method once a round. A sample repeats the call until it has moved some bytes.
void measure_bandwidth(std::vector<Method>& methods, uint64_t bytes, cudaStream_t stream) {
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin), "cudaEventCreate");
  must(cudaEventCreate(&end), "cudaEventCreate");
  const int repeats = static_cast<int>(std::clamp<uint64_t>((uint64_t{64} << 20) / bytes, 2, 100));
  const uint64_t places = std::max<uint64_t>(1, kSpread / bytes);
  for (int round = -2; round < kRounds; ++round) {  // the first two warm up
    for (size_t k = 0; k < methods.size(); ++k) {
      Method& method = methods[(k + round + 2) % methods.size()];
      must(cudaEventRecord(begin, stream), "cudaEventRecord");
      for (int i = 0; i < repeats; ++i) method.call(method.place++ % places * bytes);
      must(cudaEventRecord(end, stream), "cudaEventRecord");
      must(cudaEventSynchronize(end), "cudaEventSynchronize");
      float ms = 0;
      must(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
      if (round >= 0) method.us.push_back(ms * 1000 / repeats);
    }
  }
  for (const Method& method : methods) {
    const double us = median(method.us);
    std::printf(
        "{\"type\": \"row\", \"kind\": \"bandwidth\", \"method\": \"%s\", \"sources\": %d, "
        "\"dtype\": \"%s\", \"bytes\": %llu, \"repeats\": %d, \"rounds\": %d, "
        "\"min_us\": %.3f, \"median_us\": %.3f, \"gbps\": %.2f}\n",
        method.name.c_str(), method.sources, method.dtype.c_str(),
        static_cast<unsigned long long>(bytes), repeats, kRounds,
        *std::min_element(method.us.begin(), method.us.end()), us,
        (method.sources + 1) * static_cast<double>(bytes) / us / 1000);
  }
  std::fflush(stdout);
  must(cudaEventDestroy(begin), "cudaEventDestroy");
  must(cudaEventDestroy(end), "cudaEventDestroy");
}

/// All methods for `bytes` of each source. The shifted copy's ends cannot be aligned to each other.
std::vector<Method> methods_for(const Buffers& buffers, uint64_t bytes, cudaStream_t stream) {
  char* const to = buffers.destination;
  char* const from = buffers.sources[0];
  std::vector<Method> methods;
  methods.push_back(
      {"memcpy", 1, "bytes", [=](uint64_t at) {
         must(cudaMemcpyAsync(to + at, from + at, bytes, cudaMemcpyDeviceToDevice, stream),
              "cudaMemcpyAsync");
       }});
  for (const uint64_t shift : {0, 3}) {
    methods.push_back(
        {shift == 0 ? "multi_copy" : "multi_copy_shifted", 1, "bytes", [=](uint64_t at) {
           const CopySegment segment{to + at, from + at + shift, bytes - shift};
           launch_multi_copy(&segment, 1, stream);
         }});
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (int n = 1; n <= static_cast<int>(buffers.sources.size()); ++n) {
      methods.push_back({"multi_reduce", n, dtype_name(dtype), [=, &buffers](uint64_t at) {
                           const void* sources[kMaxSources];
                           for (int j = 0; j < n; ++j) sources[j] = buffers.sources[j] + at;
                           void* destination = to + at;
                           const ReduceSegment segment{sources, &destination,
                                                       bytes / dtype_size(dtype)};
                           launch_multi_reduce(&segment, 1, ReduceSpec{dtype, dtype, n, 1}, stream);
                         }});
    }
  }
  return methods;
}

/// The host's time for a call of `count` small segments.
void measure_launch(const char* name, int count, const std::function<void()>& call) {
  constexpr int kBatch = 50;  // below the depth of the launch queue
  std::vector<double> us;
  for (int round = -2; round < kRounds; ++round) {
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kBatch; ++i) call();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    if (round >= 0) us.push_back(took.count() / kBatch);
  }
  std::printf(
      "{\"type\": \"row\", \"kind\": \"launch\", \"method\": \"%s\", \"segments\": %d, "
      "\"batch\": %d, \"rounds\": %d, \"min_us\": %.3f, \"median_us\": %.3f}\n",
      name, count, kBatch, kRounds, *std::min_element(us.begin(), us.end()), median(us));
  std::fflush(stdout);
}

void measure_launches(const Buffers& buffers, cudaStream_t stream) {
  constexpr uint64_t kBytes = 1024;
  char* const to = buffers.destination;
  char* const from = buffers.sources[0];
  measure_launch("memcpy", 1, [&] {
    must(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  });
  for (const int count : {1, 64, 1024}) {
    std::vector<CopySegment> copies;
    std::vector<const void*> sources;
    std::vector<void*> destinations;
    for (int i = 0; i < count; ++i) {
      sources.push_back(from + i * kBytes);
      destinations.push_back(to + i * kBytes);
      copies.push_back({destinations[i], sources[i], kBytes});
    }
    std::vector<ReduceSegment> reductions;
    for (int i = 0; i < count; ++i) {
      reductions.push_back({&sources[i], &destinations[i], kBytes / sizeof(float)});
    }
    measure_launch("multi_copy", count, [&] { launch_multi_copy(copies.data(), count, stream); });
    const ReduceSpec spec{DType::kFloat32, DType::kFloat32, 1, 1};
    measure_launch("multi_reduce", count,
                   [&] { launch_multi_reduce(reductions.data(), count, spec, stream); });
  }
}

void print_environment() {
  cudaDeviceProp device{};
  int runtime = 0, driver = 0, clock_khz = 0, bus_bits = 0;
  must(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  must(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  must(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  must(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, 0), "memory clock");
  must(cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, 0), "bus width");
  std::printf(
      "{\"type\": \"environment\", \"schema\": 1, \"kind\": \"cuda_kernels\", "
      "\"device\": \"%s\", \"capability\": \"%d.%d\", \"processors\": %d, "
      "\"memory_bytes\": %zu, \"l2_bytes\": %d, \"memory_clock_khz\": %d, "
      "\"memory_bus_bits\": %d, \"cuda_runtime\": %d, \"cuda_driver\": %d}\n",
      device.name, device.major, device.minor, device.multiProcessorCount, device.totalGlobalMem,
      device.l2CacheSize, clock_khz, bus_bits, runtime, driver);
}

}  // namespace
}  // namespace fastcomm

int main() {
  using namespace fastcomm;
  print_environment();
  const Buffers buffers = allocate_buffers();
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  measure_launches(buffers, stream);
  for (uint64_t bytes = kSmallest; bytes <= kLargest; bytes *= 4) {
    std::vector<Method> methods = methods_for(buffers, bytes, stream);
    measure_bandwidth(methods, bytes, stream);
  }
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return 0;
}
