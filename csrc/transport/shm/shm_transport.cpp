#include "transport/shm/shm_transport.h"

#include "core/activity.h"
#include "core/error.h"
#include "transport/fork.h"

namespace fastcomm {

ShmTransport::ShmTransport(Endpoint& endpoint, int rank, uint64_t nonce, size_t window_bytes,
                           std::vector<Seat> seats, bool oversubscribed)
    : endpoint_(endpoint),
      nonce_(nonce),
      window_bytes_(window_bytes),
      seats_(std::move(seats)),
      oversubscribed_(oversubscribed) {
  view_.rank = rank;
  view_.size = static_cast<int>(seats_.size());
  for (int peer = 0; peer < view_.size; ++peer) {
    const Mapping& mapping = *seats_[peer].process->mapping;
    char* base = mapping.at(seats_[peer].window);
    auto* header = reinterpret_cast<WindowHeader*>(base);
    windows_.push_back(header);
    control_blocks_[peer] = &header->control;
    doorbells_[peer] = &mapping.header().doorbell;
    view_.flags[peer] = &header->control.flag;
    view_.scratch[peer] = base + sizeof(WindowHeader);
  }
}

ShmTransport::~ShmTransport() {
  if (forked_from_endpoint()) return;  // a child of fork() has no mapping, and nothing to say
  ControlBlock& control = own_control_block();
  if (control.left.load() == 0) control.left.store(1);
  wake_peers();
  // A peer may still read this window until it has left the group too, or is dead.
  endpoint_.free_later(seats_[view_.rank].window, window_bytes_, peers_are_gone());
}

void ShmTransport::reserve_scratch(size_t bytes) {
  if (bytes <= reserved_) return;
  endpoint_.segment().reserve(seats_[view_.rank].window, sizeof(WindowHeader) + bytes);
  reserved_ = bytes;
}

void ShmTransport::reserve_part(size_t offset, size_t bytes) {
  endpoint_.segment().reserve(seats_[view_.rank].window + sizeof(WindowHeader) + offset, bytes);
}

bool ShmTransport::readable(int peer, size_t offset, size_t bytes) const {
  const Seat& seat = seats_[peer];
  return seat.process->mapping->readable(seat.window + sizeof(WindowHeader) + offset, bytes);
}

uint64_t ShmTransport::locate(const void* data, size_t bytes) const {
  return endpoint_.segment().mapping().offset_of(data, bytes);
}

char* ShmTransport::reach(int peer, uint64_t where, size_t bytes) const {
  const Mapping& mapping = *seats_[peer].process->mapping;
  const bool inside = where <= mapping.bytes() && bytes <= mapping.bytes() - where;
  return inside ? mapping.at(where) : nullptr;
}

void ShmTransport::quarantine(uint64_t where, size_t bytes) {
  endpoint_.quarantine(where, bytes, peers_are_gone());
}

bool ShmTransport::lost(int peer) const {
  return seats_[peer].process->dead->load(std::memory_order_acquire);
}

std::string ShmTransport::describe(int rank) const {
  return concat("rank ", number_of(rank), " (pid ", seats_[rank].process->pid, ")");
}

std::string ShmTransport::activity(int rank) const {
  return activity_in(seats_[rank].process->records.get());
}

std::function<bool()> ShmTransport::peers_are_gone() const {
  return [windows = windows_, seats = seats_, nonce = nonce_, rank = view_.rank] {
    for (int peer = 0; peer < static_cast<int>(seats.size()); ++peer) {
      if (peer == rank || seats[peer].process->dead->load()) continue;
      // In this order: once the peer has left, its window may be freed at any moment, and be zero
      // or another group's. Who then sees no notice, sees another nonce, too.
      if (windows[peer]->control.left.load() != 0) continue;
      if (windows[peer]->nonce.load() == nonce) return false;
    }
    return true;
  };
}

}  // namespace fastcomm
