#include "engines/cpu/short_calls.h"

#include <cstring>

#include "coll/operations.h"

namespace fastcomm {

bool ShortCalls::takes(const ShortCall& call) {
  return call.bytes() <= kMostBytes && peers_.size() > 1 && (known_.is_of(call) || learn(call));
}

bool ShortCalls::learn(const ShortCall& call) {
  const auto algorithm = select_algorithm(traits_, {call.kind, call.dtype, call.op, call.bytes()});
  const bool one_step = algorithm == Algorithm::kOneShot || algorithm == Algorithm::kFlags;
  // Calls in place have other headers, and may take a third step.
  if (!one_step || row_of(call.kind, algorithm)->may_be_in_place(call.bytes())) return false;
  try {
    peers_.reserve_scratch(traits_.layout.in_one_step(call.bytes()));
  } catch (const Error&) {  // which the operation meets, too
    return false;
  }
  executor_.emplace(peers_.view(), peers_.doorbells(),
                    row_of(call.kind).reduces ? reduce_function(call.dtype, call.op) : nullptr,
                    call.op == ReduceOp::kAvg ? peers_.size() : 1);
  known_ = {call.kind, call.dtype, call.op, call.count, algorithm};
  header_ = make_header(call.whole({}), 0, static_cast<uint8_t>(algorithm));
  header_.where = kNotShared;
  return true;
}

void ShortCalls::begin(const ShortCall& call, uint64_t sequence, uint32_t base) {
  header_.sequence = sequence;
  ControlBlock& control = peers_.own_control_block();
  notice_in(control, sequence).header = header_;
  control.note_cpu();
  slot_ = traits_.layout.payload(sequence, call.bytes());
  executor_->stage_span(peers_.view().scratch[peers_.rank()] + slot_, call.input, call.bytes());
  // Release: a peer that sees the flag sees the header and the payload. Both were written over
  // those of the operation before the last, which every rank has left: each had published step 0 of
  // the last one, which this rank has waited for.
  executor_->publish(base + kFirstStep);
}

bool ShortCalls::crowded(uint32_t base) const {
  const uint32_t own = peers_.own_control_block().cpu.load(std::memory_order_relaxed);
  for (int peer = 0; peer < peers_.size(); ++peer) {
    if (executor_->arrived({peer, 1}, base + kFirstStep)) continue;
    return peers_.control_block(peer).cpu.load(std::memory_order_relaxed) == own;
  }
  return false;
}

bool ShortCalls::are_alike() const {
  // The acquire loads of the flags, by which they have arrived, come before these reads; the
  // headers stay until this rank begins the next call but one.
  for (int peer = 0; peer < peers_.size(); ++peer) {
    const CallHeader& theirs = notice_in(peers_.control_block(peer), header_.sequence).header;
    if (std::memcmp(&theirs, &header_, sizeof(header_)) != 0) return false;
  }
  return true;
}

void ShortCalls::end(const ShortCall& call) {
  if (call.count == 0) return;  // a barrier, for one
  const PeerView& view = peers_.view();
  // Ordered by the same acquire loads. No publication follows: the first wait of the next call
  // tells the peers that this rank has read.
  executor_->reduce_span(
      call.output, nullptr,
      [&](int peer) -> const char* {
        return peer == view.rank ? static_cast<const char*>(call.input)
                                 : view.scratch[peer] + slot_;
      },
      call.count, static_cast<uint32_t>(dtype_size(call.dtype)));
}

}  // namespace fastcomm
