// Stream capture: what streams are given while they are captured becomes a graph, and is done
// each time that graph is launched.
//
// As in CUDA: a stream is captured from the start of the capture on, or from its wait for an event
// that was recorded in a captured stream; it has to be joined again, by an event, before the end.
// Waiting for what lies outside, asking whether a captured stream is done, or joining a device's
// default stream is refused. The order inside is checked during the capture, by an Order of its
// own; a launched graph's parts are then done one after the other, as they were issued.
//
// A refused call that needs the captured stream's device, such as a synchronisation, makes the
// capture invalid: nothing can be added to it, and its end fails. So does a call that CUDA calls
// unsafe (allocations, queries of events), by a thread whose mode does not allow it beside that
// capture.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shim/order.h"
#include "shim/stream.h"

enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};

namespace fastcomm::shim {

inline thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

struct Graph {
  struct Node {
    std::function<void()> work;
    std::vector<Access> accesses;
    std::string what;
    const uint32_t* skip = nullptr;  // shim/runtime.h
  };
  std::vector<Node> nodes;
};

struct Capture {
  inline static std::atomic<unsigned long long> last_number{0};

  Capture(Stream* stream, cudaStreamCaptureMode begun_in) : origin(stream), mode(begun_in) {
    join(stream);
    const std::lock_guard<std::mutex> lock(mutex());
    under_way().insert(this);
    ++count;
  }

  /// True if this thread may make no unsafe call; captures that it would disturb become invalid.
  static bool forbids() {
    if (count.load(std::memory_order_relaxed) == 0 || capture_mode == cudaStreamCaptureModeRelaxed)
      return false;
    bool any = false;
    const std::lock_guard<std::mutex> lock(mutex());
    for (Capture* each : under_way()) {
      const bool own = each->thread == std::this_thread::get_id();
      if (own ? each->mode == cudaStreamCaptureModeRelaxed
              : each->mode != cudaStreamCaptureModeGlobal ||
                    capture_mode != cudaStreamCaptureModeGlobal) {
        continue;
      }
      any = each->invalid = true;
    }
    return any;
  }
  /// True if a stream of that device is captured: those captures become invalid.
  static bool spoil(int device) {
    if (count.load(std::memory_order_relaxed) == 0) return false;
    bool any = false;
    const std::lock_guard<std::mutex> lock(mutex());
    for (Capture* each : under_way()) {
      for (const Stream* stream : each->streams) {
        if (stream->device() == device) any = each->invalid = true;
      }
    }
    return any;
  }

  void join(Stream* stream) {
    const std::lock_guard<std::mutex> lock(mutex());
    if (!streams.insert(stream).second) return;
    stream->capture = this;
    stream->capture_clock = Clock();
  }
  void add(Stream* stream, Graph::Node node) {
    order.submit(stream->actor, stream->capture_clock, node.accesses, node.what);
    graph->nodes.push_back(std::move(node));
  }
  /// Whether the first stream is ordered after everything.
  bool joined() const {
    for (const Stream* stream : streams) {
      const uint64_t last = stream->capture_clock.seen(stream->actor);
      if (origin->capture_clock.seen(stream->actor) < last) return false;
    }
    return true;
  }
  /// The streams are as they were before, and events recorded in them are nothing to wait for.
  void release() {
    const std::lock_guard<std::mutex> lock(mutex());
    ended = true;
    for (Stream* stream : streams) stream->capture = nullptr;
    streams.clear();
    under_way().erase(this);
    --count;
  }

  inline static std::atomic<int> count{0};  // under way
  Stream* const origin;
  const cudaStreamCaptureMode mode;
  const std::thread::id thread = std::this_thread::get_id();
  std::atomic<bool> invalid{false};
  const unsigned long long number = ++last_number;
  bool ended = false;
  Graph* graph = new Graph;
  std::set<Stream*> streams;  // with mutex()
  Order order;

 private:
  static std::mutex& mutex() {
    static auto& all = *new std::mutex;
    return all;
  }
  /// With mutex().
  static std::set<Capture*>& under_way() {
    static auto& all = *new std::set<Capture*>;
    return all;
  }
};

}  // namespace fastcomm::shim
