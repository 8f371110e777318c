#include "engines/cpu/peer_ring.h"

#include "core/error.h"

namespace fastcomm {

RingEnd::RingEnd(Transport& peers, size_t base, int peer, size_t bytes)
    : doorbell_(peers.doorbells()[peer]), slot_bytes_(ring_slot_bytes(peers.size())) {
  const size_t own = at(base, peers.rank(), peer, peers.size());
  const size_t theirs = at(base, peer, peers.rank(), peers.size());
  peers.reserve_part(own, bytes);
  if (!peers.readable(peer, theirs, sizeof(RingWords))) {
    throw Error(ErrorCode::kSystem,
                concat("no memory is left for messages between ", peers.describe(peers.rank()),
                       " and ", peers.describe(peer), " (", errno_text("madvise"), ")"));
  }
  own_ = reinterpret_cast<RingMemory*>(peers.view().scratch[peers.rank()] + own);
  theirs_ = reinterpret_cast<RingMemory*>(peers.view().scratch[peer] + theirs);
}

RingSender::RingSender(Transport& peers, size_t base, int peer)
    : RingEnd(peers, base, peer, sizeof(RingMemory)),
      peers_(peers),
      slots_at_(at(base, peers.rank(), peer, peers.size()) + sizeof(RingMemory)) {
  publish_word(own_->words.opened, 1u, Control::kNone);
}

void RingSender::back_slots() {
  if (slots_backed_) return;
  peers_.reserve_part(slots_at_, kRingSlots * slot_bytes_);
  slots_backed_ = true;
}

std::optional<uint32_t> RingSender::next_grant() {
  const uint64_t word = look_at_word(theirs_->words.grants[granted_ % kRingGrants], Control::kNone);
  if (static_cast<uint32_t>(word >> 32) != granted_ + 1) return std::nullopt;
  ++granted_;
  return static_cast<uint32_t>(word);
}

bool RingSender::can_fill() {
  if (filled_ - drained_ < kRingSlots) return true;
  drained_ = look_at_word(theirs_->words.drained, Control::kRelaxDrainedLook);
  return filled_ - drained_ < kRingSlots;
}

void RingSender::fill(const char* data, size_t bytes) {
  std::memcpy(own_->slots() + filled_ % kRingSlots * slot_bytes_, data, bytes);
  publish_word(own_->words.filled, ++filled_, Control::kRelaxFilled);
  ring_peer();
}

RingReceiver::RingReceiver(Transport& peers, size_t base, int peer)
    : RingEnd(peers, base, peer, sizeof(RingWords)) {}

bool RingReceiver::grant(uint32_t number) {
  if (granted_ - ended_ == kRingGrants) return false;
  const uint64_t word = static_cast<uint64_t>(granted_ + 1) << 32 | number;
  publish_word(own_->words.grants[granted_ % kRingGrants], word, Control::kNone);
  ++granted_;
  ring_peer();
  return true;
}

const char* RingReceiver::next_piece() {
  if (filled_ == drained_) {
    filled_ = look_at_word(theirs_->words.filled, Control::kRelaxFilledLook);
    if (filled_ == drained_) return nullptr;
  }
  return theirs_->slots() + drained_ % kRingSlots * slot_bytes_;
}

void RingReceiver::drop_piece() {
  publish_word(own_->words.drained, ++drained_, Control::kRelaxDrained);
  ring_peer();
}

}  // namespace fastcomm
