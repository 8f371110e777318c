// Stream capture: what streams are given while they are captured becomes a graph, and is done
// each time that graph is launched.
//
// As in CUDA: a stream is captured from the start of the capture on, or from its wait for an event
// that was recorded in a captured stream; it has to be joined again, by an event, before the end.
// Waiting for what lies outside, asking whether a captured stream is done, or joining a device's
// default stream is refused. The order inside is checked during the capture, by an Order of its
// own; a launched graph's parts are then done one after the other, as they were issued.
#pragma once

#include <atomic>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shim/order.h"
#include "shim/stream.h"

namespace fastcomm::shim {

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

  explicit Capture(Stream* stream) : origin(stream) { join(stream); }

  void join(Stream* stream) {
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
    ended = true;
    for (Stream* stream : streams) stream->capture = nullptr;
    streams.clear();
  }

  Stream* const origin;
  const unsigned long long number = ++last_number;
  bool ended = false;
  Graph* graph = new Graph;
  std::set<Stream*> streams;
  Order order;
};

}  // namespace fastcomm::shim
