// all_to_all_v: every rank sends messages of any size to every rank: gather, scatter, all_to_all,
// uneven all_gather. A rank knows the sizes that it sends and expects, but not those between
// others.
//
// A rank's outbox is its messages to its peers, laid end to end. It starts with the message to the
// next rank, so that at any time the ranks read from different peers. A table in the rank's scratch
// holds the position of each message in the outbox. A outbox that fits a payload slot is all there
// in step 0; a longer one goes through the stage slots in blocks b = 0 .. B-1, each rank's own B.
// Cost: 1 wait, or max(B) + 1 waits; a message is staged once, and read once by its receiver.
//   step 0   write the table; copy a short outbox to the payload slot
//   step 1   agree on the largest number of blocks of any rank, which sets the number of steps;
//            copy this rank's message to itself, and the messages for it out of short outboxes;
//            stage block 0
//   step k   stage block k-1; copy this rank's messages out of block k-2 of every long outbox
//
// Slot reuse: as in all_gather.h. Tables are chosen by the parity of the operation, and payload
// slots are not those of the previous operation, as argued in all_reduce.h. The table holds the
// places of payload and stages, which depend on the sizes of the rank's own outbox.
//
// Memory ordering. As in coll/schedule.h; tables are written before step 0 is published and read
// after the wait of step 1.
//
// No expected message overlaps one that is sent, except the message of a rank to itself.
#pragma once

#include <memory>

#include "coll/messages.h"
#include "coll/plan.h"
#include "coll/schedule.h"
#include "transport/peer_view.h"

namespace fastcomm {

/// A rank's description of its outbox.
struct MessageTable {
  struct Entry {
    uint64_t first;  // byte of the outbox
    uint64_t bytes;
  };
  uint64_t blocks;  // 0: in the payload slot
  uint64_t block;   // bytes of every block but the last
  uint64_t at;      // of the payload in scratch
  uint64_t turn;    // of the first block's stage
  Entry to[kMaxRanks];

  static constexpr uint64_t bytes_for(int size) {
    return 4 * sizeof(uint64_t) + static_cast<uint64_t>(size) * sizeof(Entry);
  }
};

struct AllToAllV {
  const PeerView& peers;  // outlives the schedule
  ScratchLayout layout;
  uint64_t sequence;  // of the operation
  std::shared_ptr<Messages> messages;
  uint64_t bytes;   // of this rank's outbox
  uint64_t block;   // bytes
  uint64_t blocks;  // of this rank's outbox

  AllToAllV(const PeerView& group, const ScratchLayout& slots, uint64_t sequence,
            std::shared_ptr<Messages> wanted);

  uint64_t payload_bytes() const { return blocks == 0 ? bytes : kInBlocks; }
  uint32_t steps() const { return static_cast<uint32_t>(messages->agreed_blocks) + 2; }
  WaitFor wait_for(uint32_t) const { return WaitFor{0, peers.size}; }

  void run(CpuExecutor& executor, uint32_t step) const {
    if (step == 0) return begin(executor);
    if (step == 1) meet(executor);
    if (step - 1 < blocks) stage(executor, step - 1);
    if (step >= 2) copy_out(executor, step - 2);
  }

 private:
  MessageTable& table_of(int rank) const {
    return *reinterpret_cast<MessageTable*>(peers.scratch[rank] + layout.table(sequence));
  }
  uint64_t first_turn() const { return sequence * blocks; }
  /// Writes this rank's table.
  void write_table() const;
  /// Reads the tables: the blocks of the longest outbox, and sizes that only their senders know.
  /// Raises Error(kMismatch) if a peer sends a size other than the expected one.
  void read_tables() const;

  /// Calls visit(data, span) for the part of each message that lies in bytes [from, to) of this
  /// rank's outbox; the span counts in the outbox.
  template <class Visit>
  void each_sent(uint64_t from, uint64_t to, const Visit& visit) const {
    uint64_t at = 0;
    for (int hop = 1; hop < peers.size && at < to; ++hop) {
      const auto& sent = messages->sends[static_cast<size_t>((peers.rank + hop) % peers.size)];
      const uint64_t first = at < from ? from : at;
      const uint64_t end = smaller(at + sent.bytes, to);
      if (first < end) visit(sent.data + (first - at), Span{first, end - first});
      if (messages->same_for_all) return;
      at += sent.bytes;
    }
  }

  void begin(CpuExecutor& executor) const {
    write_table();
    if (blocks != 0) return;
    char* slot = peers.scratch[peers.rank] + layout.payload(sequence, bytes);
    each_sent(0, layout.payload_bytes, [&](const char* data, const Span& span) {
      executor.stage_span(slot + span.first, data, span.count);
    });
  }

  void meet(CpuExecutor& executor) const {
    read_tables();
    const auto own = static_cast<size_t>(peers.rank);
    executor.copy_span(messages->receives[own].data, messages->sends[own].data,
                       messages->sends[own].bytes);
    for (int hop = 1; hop < peers.size; ++hop) {
      const int peer = (peers.rank + hop) % peers.size;
      const MessageTable& table = table_of(peer);
      if (table.blocks != 0) continue;
      const auto& expected = messages->receives[static_cast<size_t>(peer)];
      const char* payload = peers.scratch[peer] + table.at;
      executor.copy_span(expected.data, payload + table.to[own].first, expected.bytes);
    }
  }

  void stage(CpuExecutor& executor, uint64_t b) const {
    char* slot = peers.scratch[peers.rank] + layout.stage(first_turn() + b, block);
    const uint64_t from = b * block;
    each_sent(from, from + block, [&](const char* data, const Span& span) {
      executor.stage_span(slot + (span.first - from), data, span.count);
    });
  }

  void copy_out(CpuExecutor& executor, uint64_t b) const {
    for (int hop = 1; hop < peers.size; ++hop) {
      const int peer = (peers.rank + hop) % peers.size;
      const MessageTable& table = table_of(peer);
      if (b >= table.blocks) continue;
      const auto& entry = table.to[peers.rank];
      const uint64_t from = b * table.block;
      const uint64_t first = entry.first < from ? from : entry.first;
      const uint64_t end = smaller(entry.first + entry.bytes, from + table.block);
      if (first >= end) continue;
      executor.copy_span(
          messages->receives[static_cast<size_t>(peer)].data + (first - entry.first),
          peers.scratch[peer] + layout.stage(table.turn + b, table.block) + (first - from),
          end - first);
    }
  }
};

}  // namespace fastcomm
