// A group whose ranks are processes of one host, over shared memory. forming.h makes one.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/shm/endpoint.h"
#include "transport/transport.h"

namespace fastcomm {

/// Start of a rank's window: the control block and the group's nonce; scratch follows.
struct alignas(kLineBytes) WindowHeader {
  ControlBlock control;
  std::atomic<uint64_t> nonce;
};

/// The place of a rank: its process, and its window's offset in that process's segment.
struct Seat {
  std::shared_ptr<PeerProcess> process;
  uint64_t window;
};

class ShmTransport final : public Transport {
 public:
  /// `seats` holds one per rank. Owns this rank's window, of `window_bytes`, from now on.
  /// `oversubscribed` as in Transport.
  ShmTransport(Endpoint& endpoint, int rank, uint64_t nonce, size_t window_bytes,
               std::vector<Seat> seats, bool oversubscribed);
  ~ShmTransport() override;

  void reserve_scratch(size_t bytes) override;
  void reserve_part(size_t offset, size_t bytes) override;
  bool readable(int peer, size_t offset, size_t bytes) const override;
  uint64_t locate(const void* data, size_t bytes) const override;
  char* reach(int peer, uint64_t where, size_t bytes) const override;
  void quarantine(uint64_t where, size_t bytes) override;
  bool lost(int peer) const override;
  /// The returned function keeps the windows of all ranks mapped.
  std::function<bool()> peers_are_gone() const override;
  std::string describe(int rank) const override;
  std::string activity(int rank) const override;
  bool oversubscribed() const override { return oversubscribed_; }

 private:
  Endpoint& endpoint_;
  uint64_t nonce_;
  size_t window_bytes_;
  std::vector<Seat> seats_;
  const bool oversubscribed_;
  std::vector<WindowHeader*> windows_;
  size_t reserved_ = 0;  // bytes of scratch, backed by memory
};

}  // namespace fastcomm
