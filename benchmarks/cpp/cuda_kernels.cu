// Every batched kernel on one GPU beside cudaMemcpyAsync from device to device of as many bytes, in
// the same run; and what a launch costs the host.
//
//   python tools/gpu_programs.py --architectures 9.0     # compiles it, with the programs of tests
//   build/gpu/cuda_kernels > cuda-kernels.jsonl
//   build/gpu/cuda_kernels gradient              # methods with this in their names; no launches
//
// Prints JSON lines: the environment, then a row for each measurement.
//   "bandwidth"  `bytes` is what one source holds, in `segments` tensors; `gbps` counts all that
//                must be read and written (`moved_bytes`), at the median of kRounds samples of the
//                device's time (cuda_timing.h). `share_of_copy` is that over what a copy of half as
//                many bytes, which moves the same, reached in the same rounds; `spread` the width
//                of the middle half of the samples over their median. Each round takes one sample
//                of every method, in an order that turns. Every call moves on through memory that
//                is many times the second-level cache, which so helps no size.
//                `layout` is "aligned" (to 16 bytes) or "differing" (no two of four neighbours
//                alike).
//   "launch"     `median_us` is the host's time for one call, over batches that stay below the
//                depth of the launch queue.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "cuda_methods.h"
#include "cuda_timing.h"
#include "kernels/cuda/multi_reduce.h"

namespace fastcomm::benchmarks {
namespace {

constexpr int kRounds = 21;
constexpr uint64_t kSizes[] = {uint64_t{256} << 10, uint64_t{4} << 20, uint64_t{64} << 20,
                               uint64_t{256} << 20};

/// Half of what a method moves, to the next of few sizes: one copy serves several methods.
uint64_t size_of_copy(const Method& method) {
  const uint64_t step = std::max<uint64_t>(kGap, method.bytes / 4);
  return std::max(step, (method.moved / 2 + step / 2) / step * step);
}

void print_row(const Method& method, int repeats, const Spread& time, double copy_gbps) {
  const double gbps = static_cast<double>(method.moved) / time.median_us / 1000;
  std::printf(
      "{\"type\": \"row\", \"kind\": \"bandwidth\", \"method\": \"%s\", \"sources\": %d, "
      "\"dtype\": \"%s\", \"layout\": \"%s\", \"segments\": %d, \"bytes\": %llu, "
      "\"moved_bytes\": %llu, \"repeats\": %d, \"rounds\": %d, \"min_us\": %.3f, "
      "\"median_us\": %.3f, \"spread\": %.4f, \"gbps\": %.2f, \"share_of_copy\": %.4f}\n",
      method.name.c_str(), method.sources, method.dtype.c_str(), method.layout.c_str(),
      method.segments, static_cast<unsigned long long>(method.bytes),
      static_cast<unsigned long long>(method.moved), repeats, kRounds, time.min_us, time.median_us,
      time.spread, gbps, gbps / copy_gbps);
}

/// Times every method and the copies beside them once a round.
void measure_bandwidth(Device& device, DeviceClock& clock, uint64_t bytes,
                       const std::string& wanted) {
  std::vector<Method> methods = methods_for(device, bytes);
  const auto unwanted = [&](const Method& method) {
    return method.name.find(wanted) == std::string::npos;
  };
  methods.erase(std::remove_if(methods.begin(), methods.end(), unwanted), methods.end());
  FC_CHECK(!methods.empty(), "no method has \"", wanted, "\" in its name");
  std::map<uint64_t, size_t> copies;  // by size, where they stand
  const size_t kernels = methods.size();
  for (size_t k = 0; k < kernels; ++k) copies.emplace(size_of_copy(methods[k]), 0);
  for (auto& [size, at] : copies) {
    at = methods.size();
    methods.push_back(plain_copy(device, size));
  }
  const auto repeats_of = [](const Method& method) {
    return static_cast<int>(std::clamp<uint64_t>((uint64_t{64} << 20) / method.moved, 2, 100));
  };
  for (int round = -2; round < kRounds; ++round) {  // the first two warm up
    for (size_t k = 0; k < methods.size(); ++k) {
      Method& method = methods[(k + 7 * (round + 2)) % methods.size()];
      const double us = clock.microseconds(repeats_of(method), method.call);
      if (round >= 0) method.us.push_back(us);
    }
  }
  for (const Method& method : methods) {
    const bool copy = method.name == "memcpy";
    const Method& beside = copy ? method : methods[copies.at(size_of_copy(method))];
    const double copy_gbps =
        static_cast<double>(beside.moved) / summed_up(beside.us).median_us / 1000;
    print_row(method, repeats_of(method), summed_up(method.us), copy_gbps);
  }
  std::fflush(stdout);
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
  const Spread time = summed_up(us);
  std::printf(
      "{\"type\": \"row\", \"kind\": \"launch\", \"method\": \"%s\", \"segments\": %d, "
      "\"batch\": %d, \"rounds\": %d, \"min_us\": %.3f, \"median_us\": %.3f, \"spread\": %.4f}\n",
      name, count, kBatch, kRounds, time.min_us, time.median_us, time.spread);
  std::fflush(stdout);
}

void measure_launches(Device& device) {
  constexpr uint64_t kBytes = 1024;
  const Method copy = plain_copy(device, kBytes);
  measure_launch("memcpy", 1, copy.call);
  for (const int count : {1, 64, 1024}) {
    const uint64_t bytes = count * kBytes;
    measure_launch("multi_copy", count, batched_copy(device, bytes + count * kGap, 0, count).call);
    const ReduceSpec spec{DType::kFloat32, DType::kFloat32, 2, 1};
    Tables tables(device, 2, true, DType::kFloat32, false, count, bytes);
    const std::vector<ReduceSegment>& segments = tables.next();
    measure_launch("multi_reduce", count,
                   [&] { launch_multi_reduce(segments.data(), count, spec, device.stream); });
    const Method fused = gradients(device, bytes, 2, DType::kFloat32, DType::kFloat32, count);
    measure_launch("multi_gradient", count, fused.call);
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

/// `wanted` is part of the methods' names.
void measure(const std::string& wanted) {
  print_environment();
  size_t free_bytes = 0, total = 0;
  must(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
  // The sources of the largest call, twice: 16 of the largest size are 4 GiB.
  const uint64_t walk = std::min<uint64_t>(uint64_t{9} << 30, free_bytes / 5 * 2) / kGap * kGap;
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  Device device{Walk(walk, 1), Walk(walk, 2), stream};
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  if (wanted.empty()) measure_launches(device);
  DeviceClock clock(stream);
  for (const uint64_t bytes : kSizes) {
    if (17 * (bytes + kGap * (kManySegments + 1)) >= walk) continue;
    measure_bandwidth(device, clock, bytes, wanted);
  }
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace
}  // namespace fastcomm::benchmarks

int main(int argc, char** argv) {
  try {
    fastcomm::benchmarks::measure(argc > 1 ? argv[1] : "");
  } catch (const fastcomm::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
