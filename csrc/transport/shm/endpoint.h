// State of one process for all its groups: its segment, and the processes it shares memory with.
// One connection to a process serves every group that has both.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/shm/death_watch.h"
#include "transport/shm/handshake.h"
#include "transport/shm/segment.h"

namespace fastcomm {

/// Another process, or this one. Alive until the death watch reports its end.
struct PeerProcess {
  EndpointId id;
  int pid = 0;
  std::shared_ptr<const Mapping> mapping;
  std::shared_ptr<std::atomic<bool>> dead = std::make_shared<std::atomic<bool>>(false);
  Fd records;  // of what it calls, if it has any: open for those who ask from outside
};

class Endpoint {
 public:
  explicit Endpoint(const std::string& segment_kind);

  /// This process's endpoint, made on first use and never destroyed: its threads may outlive the
  /// static objects. Raises Error(kSystem) if the machine has no shared memory or no pidfd.
  static Endpoint& instance();

  /// The processes with which living groups of this one share memory. None before instance().
  static std::vector<std::shared_ptr<PeerProcess>> known_peers();

  EndpointId id() const { return id_; }
  Segment& segment() { return segment_; }
  Doorbell& doorbell() { return segment_.mapping().header().doorbell; }
  /// What peers are handed.
  OwnFiles files() const;
  /// This process's introduction to peers; the first call fixes the size of the segment.
  Hello hello(uint64_t nonce);

  /// The process if a living group shares memory with it, else nullptr.
  std::shared_ptr<PeerProcess> find(const EndpointId& id);
  /// Maps the memory that a peer handed over, and watches the peer.
  std::shared_ptr<PeerProcess> adopt(Introduction introduction);

  /// Frees a window once `unused()` reports that no peer can touch it any more; checked whenever a
  /// window is allocated.
  void free_later(uint64_t offset, size_t bytes, std::function<bool()> unused);
  uint64_t allocate(size_t bytes);

  /// Keeps a range from being reused until `unused()`, if it is freed before.
  void quarantine(uint64_t offset, size_t bytes, std::function<bool()> unused);
  /// Frees a range, as soon as no quarantine holds any of it.
  void free(uint64_t offset, size_t bytes);

 private:
  struct Leftover {
    uint64_t offset;
    size_t bytes;
    std::function<bool()> unused;
  };
  using Leftovers = std::vector<Leftover>;

  bool in_quarantine(uint64_t offset, size_t bytes);  // with mutex_

  EndpointId id_;
  Segment segment_;
  Fd pidfd_;
  std::unique_ptr<DeathWatch> watch_;
  std::mutex mutex_;
  std::map<EndpointId, std::weak_ptr<PeerProcess>> peers_;
  Leftovers leftovers_;   // to be freed
  Leftovers quarantine_;  // in use or to be freed
};

}  // namespace fastcomm
