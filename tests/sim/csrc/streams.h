// Streams and devices of the simulation, as torch names them, over the execution shim's
// (tests/shim): everything that is given to a stream is done later, on a thread of its hardware
// queue, and the shim's Order checks that it is ordered with other uses of the same memory.
//
//   CUDA_DEVICE_MAX_CONNECTIONS  hardware queues of a device, 1 to 32; 8 as on a GPU
//   SIM_LINKS                    which devices do not reach each other: "0-1 none, 2-3 reads":
//                                none: no access; reads, writes: access with which bits go wrong;
//                                tired: reads go wrong while several streams are at work; slow:
//                                right, late
//   SIM_IPC, SIM_DESCRIPTORS     0: no memory for other processes by handles, by descriptors
//   SIM_FABRIC                   1: by fabric handles
//   SIM_VMM                      0: no memory from the driver
//   SIM_PINNED                   0: no host memory that existed before
//   SIM_DISPLAY                  a device that drives a display: it ends long kernels
//   SIM_DELAY_US                 how long a piece of work may be delayed before it begins, at
//                                random
//   SIM_DRIVER                   the driver's CUDA version, as CUDA writes it
#pragma once

#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "arena.h"
#include "core/cuda_host.h"
#include "shim/ipc.h"
#include "shim/vmm.h"

namespace sim {

namespace shim = fastcomm::shim;

constexpr auto kSim = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 8;
constexpr int kStreamsOfPool = 32;  // of each priority, as torch has for CUDA
constexpr int kStreams = 2 * kStreamsOfPool;
/// Streams of the pool have high priority from here on.
constexpr int kFirstOfHighPriority = kStreamsOfPool + 1;

inline int number_of_environment(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

inline int index_of(c10::DeviceIndex index) { return index < 0 ? shim::current_device : index; }

/// "0-1 none, 2-3 reads, 4-5 writes"; both directions.
inline std::vector<std::vector<shim::Link>> links_of_environment() {
  using shim::Link;
  std::vector<std::vector<Link>> links(kDevices, std::vector<Link>(kDevices, Link::kDirect));
  const char* text = std::getenv("SIM_LINKS");
  for (std::string rest = text == nullptr ? "" : text; !rest.empty();) {
    const size_t comma = rest.find(',');
    const std::string one = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    int a = 0, b = 0;
    char kind[16] = {};
    const bool understood = std::sscanf(one.c_str(), " %d-%d %15s", &a, &b, kind) == 3 && a != b &&
                            a >= 0 && b >= 0 && a < kDevices && b < kDevices;
    const std::string word(kind);
    const std::map<std::string, Link> kinds{{"none", Link::kNone},
                                            {"reads", Link::kBrokenReads},
                                            {"writes", Link::kLostWrites},
                                            {"tired", Link::kTired},
                                            {"slow", Link::kSlow}};
    TORCH_CHECK(understood && kinds.count(word), "SIM_LINKS: what is \"", one, "\"?");
    links[a][b] = links[b][a] = kinds.at(word);
  }
  return links;
}

inline void set_up_devices() {
  static const bool once = [] {
    Arena::get();
    auto& runtime = shim::Runtime::get();
    runtime.set_memory_source(shim::Arena::source());
    const int queues = number_of_environment("CUDA_DEVICE_MAX_CONNECTIONS", 8);
    TORCH_CHECK(queues >= 1 && queues <= 32, "CUDA_DEVICE_MAX_CONNECTIONS: 1 to 32");
    runtime.configure(links_of_environment(), queues);
    runtime.registers = number_of_environment("SIM_PINNED", 1) != 0;
    runtime.displays = {number_of_environment("SIM_DISPLAY", -1)};
    shim::Ipc::get().supported = number_of_environment("SIM_IPC", 1) != 0;
    shim::Vmm::get().supported = number_of_environment("SIM_VMM", 1) != 0;
    shim::Vmm::get().descriptors = number_of_environment("SIM_DESCRIPTORS", 1) != 0;
    shim::Vmm::get().fabric = number_of_environment("SIM_FABRIC", 0) != 0;
    return true;
  }();
  static_cast<void>(once);
}

/// Makes a device current, as the shim's functions require.
class OnDevice {
 public:
  explicit OnDevice(int device) : before_(shim::current_device) { shim::current_device = device; }
  ~OnDevice() { shim::current_device = before_; }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const int before_;
};

inline void must(cudaError_t result, const char* what) {
  TORCH_CHECK(result == cudaSuccess, "CUDA error: ", cudaGetErrorString(result), " (", what, ")");
}

inline std::mutex pool_mutex;  // guards the next
inline std::array<std::array<cudaStream_t, kStreams + 1>, kDevices> pool = {};

/// The shim's stream; 0 is a device's default stream, as in CUDA.
inline cudaStream_t native(const c10::Stream& stream) {
  if (stream.id() == 0) return nullptr;
  const std::lock_guard<std::mutex> lock(pool_mutex);
  cudaStream_t& made = pool.at(stream.device_index()).at(stream.id());
  if (made == nullptr) made = shim::Runtime::get().make_stream(stream.device_index());
  return made;
}

/// True if a stream of the pool was given anything, or asked.
inline bool is_used(int device, c10::StreamId id) {
  const std::lock_guard<std::mutex> lock(pool_mutex);
  return pool.at(device).at(id) != nullptr;
}

/// Numbers of such streams: of normal priority, and of high priority.
inline std::pair<int, int> streams_used(int device) {
  std::pair<int, int> used;
  for (int id = 1; id <= kStreams; ++id) {
    if (is_used(device, id)) ++(id < kFirstOfHighPriority ? used.first : used.second);
  }
  return used;
}

inline thread_local std::array<c10::StreamId, kDevices> current_streams = {};

inline c10::Stream stream_of(int device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, static_cast<c10::DeviceIndex>(device)),
                     id);
}
inline c10::Stream current_stream(int device) { return stream_of(device, current_streams[device]); }

/// What a piece of work has raised; the next call that waits raises it.
class LateError {
 public:
  static void set(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex());
    if (text_().empty()) text_() = text;
  }
  static void check() {
    std::string found;
    {
      const std::lock_guard<std::mutex> lock(mutex());
      found.swap(text_());
    }
    TORCH_CHECK(found.empty(), "sim: an operator that ran late has failed: ", found);
  }

 private:
  static std::mutex& mutex() {
    static auto& all = *new std::mutex;
    return all;
  }
  static std::string& text_() {
    static auto& all = *new std::string;
    return all;
  }
};

inline void dawdle() {
  static const int most = number_of_environment("SIM_DELAY_US", 30);
  if (most <= 0) return;
  thread_local std::minstd_rand random(
      static_cast<unsigned>(std::hash<std::thread::id>{}(std::this_thread::get_id())));
  if (random() % 4 == 0) usleep(static_cast<useconds_t>(random() % most));
}

/// How many calls there were, for tests: operators that ran late, and those that had to wait.
struct Counts {
  std::atomic<uint64_t> late{0};
  std::atomic<uint64_t> waited{0};
};
inline Counts& counts() {
  static auto& all = *new Counts;
  return all;
}

inline void synchronize(const c10::Stream& stream) {
  const OnDevice on(stream.device_index());
  must(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize");
  LateError::check();
}

}  // namespace sim
