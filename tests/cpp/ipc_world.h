// Processes whose devices' memory the others can map, and how they talk: a test's ranks are forked
// before anything of CUDA or the shim exists, each with a pair of pipes to every other one.
#pragma once

#include <sys/socket.h>

#include <csignal>
#include <string>
#include <vector>

#include "check.h"
#include "core/cuda_host.h"
#include "fork_world.h"
#if defined(FC_SHIM)
#include "shim/arena.h"
#include "shim/ipc.h"
#include "shim/vmm.h"
#endif

namespace fastcomm::testing {

/// What a rank of run_ipc_ranks has of the others. A peer that has ended is an exception.
class IpcRank {
 public:
  IpcRank(int rank, std::vector<int> sockets) : rank(rank), sockets_(std::move(sockets)) {}

  int size() const { return static_cast<int>(sockets_.size()); }
  int socket(int peer) const { return sockets_[peer]; }

  template <class T>
  void send(int peer, const T& value) const {
    if (write(sockets_[peer], &value, sizeof(value)) != sizeof(value)) gone(peer);
  }
  template <class T>
  T receive(int peer) const {
    T value;
    if (recv(sockets_[peer], &value, sizeof(value), MSG_WAITALL) != sizeof(value)) gone(peer);
    return value;
  }
  /// The values of all ranks, in their order.
  template <class T>
  std::vector<T> exchange(const T& own) const {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank) send(peer, own);
    }
    std::vector<T> all(size(), own);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank) all[peer] = receive<T>(peer);
    }
    return all;
  }
  void meet() const { exchange(char{}); }
  /// The same for the remaining ranks, in their order.
  IpcRank without(int gone) const {
    std::vector<int> left = sockets_;
    left.erase(left.begin() + gone);
    return {rank - (rank > gone ? 1 : 0), left};
  }

  const int rank;

 private:
  [[noreturn]] void gone(int peer) const {
    throw std::runtime_error(concat("rank ", rank, ": rank ", peer, " has ended"));
  }

  std::vector<int> sockets_;
};

#if defined(FC_SHIM)
constexpr bool kOnSimulatedDevices = true;

inline void set_up_devices(bool hidden, int queues) {
  shim::Arena::Options options;
  options.hidden = hidden;
  shim::Arena::get(options);
  auto& runtime = shim::Runtime::get();
  runtime.set_memory_source(shim::Arena::source());
  using shim::Link;
  shim::Vmm::get().fabric = true;
  runtime.configure({{Link::kDirect, Link::kDirect}, {Link::kDirect, Link::kDirect}}, queues);
}
inline std::vector<std::string> take_hazards() { return shim::Order::get().take_hazards(); }
#else
constexpr bool kOnSimulatedDevices = false;

/// On a GPU nothing checks the order, and all memory is hidden.
inline void set_up_devices(bool, int queues) {
  if (queues != 0) setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(queues).c_str(), 1);
}
inline std::vector<std::string> take_hazards() { return {}; }
#endif

inline int device_count() {
  int count = 0;
  FC_CUDA(cudaGetDeviceCount(&count), "a test");
  return count;
}

/// A socket of each rank to each other one: ends[rank][peer].
inline std::vector<std::vector<int>> connected_sockets(int size) {
  std::vector<std::vector<int>> ends(size, std::vector<int>(size, -1));
  for (int a = 0; a < size; ++a) {
    for (int b = a + 1; b < size; ++b) {
      int pair[2];
      EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "a test's sockets");
      ends[a][b] = pair[0];
      ends[b][a] = pair[1];
    }
  }
  return ends;
}
/// Closes them, but for those of one rank.
inline void close_sockets(const std::vector<std::vector<int>>& ends, int except = -1) {
  for (int rank = 0; rank < static_cast<int>(ends.size()); ++rank) {
    for (const int end : ends[rank]) {
      if (end >= 0 && rank != except) close(end);
    }
  }
}

/// Runs `body(IpcRank&)` in one process per rank, under the shim with two devices, whose memory the
/// others can map. A rank fails by EXPECT, an exception, a hazard that it leaves, or a signal other
/// than SIGKILL. Hidden: only what runs on a device reaches its memory, at the address that
/// device_view gives. `queues` is how many hardware queues a device's streams share; 0: each has
/// its own.
template <class Body>
void run_ipc_ranks(int size, const Body& body, bool hidden = false, int queues = 0) {
  const auto ends = connected_sockets(size);
  const auto pids = start_processes(size, [&](int rank) {
    close_sockets(ends, rank);
    std::signal(SIGPIPE, SIG_IGN);
    set_up_devices(hidden, queues);
    try {
      body(IpcRank(rank, ends[rank]));
    } catch (const std::exception& error) {
      EXPECT(false, "rank ", rank, ": ", error.what());
    }
    for (const std::string& hazard : take_hazards()) {
      EXPECT(false, "rank ", rank, ": a hazard: ", hazard);
    }
    std::fflush(stdout);
    _exit(failures == 0 ? 0 : 1);  // a device's threads may be at work
  });
  close_sockets(ends);
  await_processes(pids,
                  [](int, int status) { return ended_well(status) || ended_by(status, SIGKILL); });
}

/// Expects exactly the hazards so far: as many as `words` has entries, each with all its words.
inline void expect_hazards(const std::vector<std::vector<std::string>>& words, const char* what) {
  const std::vector<std::string> found = take_hazards();
  EXPECT(found.size() == words.size(), what, ": ", found.size(), " hazards instead of ",
         words.size(), ": ", found.empty() ? "" : found[0]);
  for (size_t i = 0; i < std::min(found.size(), words.size()); ++i) {
    for (const std::string& word : words[i]) {
      EXPECT(found[i].find(word) != std::string::npos, what, ": no '", word, "' in: ", found[i]);
    }
  }
}

inline char* device_memory(size_t bytes) {
  void* memory = nullptr;
  FC_CUDA(cudaMalloc(&memory, bytes), "a test");
  return static_cast<char*>(memory);
}
inline cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  FC_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a test");
  return stream;
}
inline void set(char* memory, size_t bytes, cudaStream_t stream) {
  FC_CUDA(cudaMemsetAsync(memory, 0, bytes, stream), "a test");
}
inline void wait(cudaStream_t stream) { FC_CUDA(cudaStreamSynchronize(stream), "a test"); }
inline void order(cudaStream_t first, cudaStream_t second) {
  cudaEvent_t event = nullptr;
  FC_CUDA(cudaEventCreateWithFlags(&event, 0), "a test");
  FC_CUDA(cudaEventRecord(event, first), "a test");
  FC_CUDA(cudaStreamWaitEvent(second, event, 0), "a test");
  FC_CUDA(cudaEventDestroy(event), "a test");
}

/// Memory of every rank as this one reaches it, set to zero before the handles went out.
inline std::vector<char*> windows_of(const IpcRank& self, size_t bytes, cudaStream_t stream) {
  char* const own = device_memory(bytes);
  set(own, bytes, stream);
  wait(stream);
  cudaIpcMemHandle_t handle;
  FC_CUDA(cudaIpcGetMemHandle(&handle, own), "a test");
  std::vector<char*> all;
  for (const cudaIpcMemHandle_t& each : self.exchange(handle)) {
    void* memory = own;
    if (static_cast<int>(all.size()) != self.rank) {
      FC_CUDA(cudaIpcOpenMemHandle(&memory, each, cudaIpcMemLazyEnablePeerAccess), "a test");
    }
    all.push_back(static_cast<char*>(memory));
  }
  return all;
}

}  // namespace fastcomm::testing
