#include "coll/all_to_all_v.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace fastcomm {

AllToAllV::AllToAllV(const PeerView& group, const ScratchLayout& slots, uint64_t number,
                     std::shared_ptr<Messages> wanted)
    : peers(group), layout(slots), sequence(number), messages(std::move(wanted)) {
  bytes = messages->staged_bytes(peers.rank);
  block = overlapping_block(bytes, layout);
  blocks = bytes <= layout.payload_bytes ? 0 : ceil_div(bytes, block);
}

void AllToAllV::write_table() const {
  MessageTable& table = table_of(peers.rank);
  table.blocks = blocks;
  table.block = block;
  table.turn = first_turn();
  table.at = blocks == 0 ? layout.payload(sequence, bytes) : 0;
  uint64_t at = 0;
  for (int hop = 1; hop < peers.size; ++hop) {
    const int peer = (peers.rank + hop) % peers.size;
    const Messages::Sent& sent = messages->sends[static_cast<size_t>(peer)];
    table.to[peer] = {at, sent.bytes};
    if (!messages->same_for_all) at += sent.bytes;
  }
}

void AllToAllV::read_tables() const {
  messages->agreed_blocks = blocks;
  for (int peer = 0; peer < peers.size; ++peer) {
    auto& expected = messages->receives[static_cast<size_t>(peer)];
    const bool own = peer == peers.rank;
    const uint64_t bytes = own ? messages->sends[static_cast<size_t>(peer)].bytes
                               : table_of(peer).to[peers.rank].bytes;
    if (messages->place) expected = {messages->place(peer, bytes), bytes};
    if (bytes != expected.bytes) {
      throw Error(ErrorCode::kMismatch, concat("rank ", peer, " sends ", bytes, " bytes to rank ",
                                               peers.rank, ", which expects ", expected.bytes));
    }
    if (!own) messages->agreed_blocks = std::max(messages->agreed_blocks, table_of(peer).blocks);
  }
}

}  // namespace fastcomm
