// Messages of a call between a rank and those in its place on other hosts, and their memory.
//
// The first messages of a call are envelopes: the call's header, which the other host compares with
// its own before it sends anything else, or writes to a user's tensor; and data, if there is little
// of it. A call's receive is posted when the call before it begins: the other host sends that
// envelope once it has this rank's envelope of that call, so the receive is always there before.
// Nothing is posted when a call ends, since the other host may then have left. Receives for data
// are posted before the envelope that lets the other host send it, as far as there is room.
//
// Who sends data outside of envelopes has read all hosts' envelopes, and its own host agrees: so
// such data is that of a call in which all ranks agree, and may go straight to the user's tensor.
// Early data, of short calls, follows its envelope at once. It may be that of another call than the
// receiver's, which reads all envelopes before it uses any; so it goes to memory of this file's,
// and every length has a kind of message of its own: Gloo ends a group in which a receive meets a
// message of another length. tests/model/host_exchange.pml is a model of this.
#pragma once

#include <array>
#include <vector>

#include "c10d/engines/hosts/host_inside.h"
#include "c10d/engines/hosts/wire.h"
#include "coll/host_layout.h"
#include "coll/host_thresholds.h"
#include "coll/plan.h"

namespace fastcomm {

/// The way of a call, which must be the same on all hosts.
enum class HostPath : uint8_t { kShort = 0, kLong = 1 };

/// Used by one thread, and after an error not any more. Then messages may be under way: their
/// memory, which may be the user's, must live until this is destroyed. The destructor may wait.
class HostExchange {
 public:
  using UnderWay = std::vector<Wire::Message>;

  /// A part of a long message on its way.
  struct Chunk {
    Span span{};  // of the message
    char* memory = nullptr;
    UnderWay expected, results, sent;
  };

  static constexpr uint64_t kChunksUnderWay = 3;
  static constexpr uint64_t kEnclosedBytes = 2048;  // in an envelope

  HostExchange(HostLayout layout, const HostThresholds& thresholds, int ranks,
               Wire::BackendPtr gloo);

  const HostLayout& layout() const { return layout_; }
  const HostThresholds& thresholds() const { return thresholds_; }
  int own() const { return layout_.own; }
  int own_rank() const { return layout_.hosts[layout_.own][layout_.local]; }
  int num_hosts() const { return layout_.num_hosts(); }
  /// Calls `act(host)` for each other host.
  template <class Act>
  void each_other(const Act& act) const {
    for (int host = 0; host < num_hosts(); ++host) {
      if (host != own()) act(host);
    }
  }

  /// One partial for each host, in their order: this one's, and `received_of(host)` of the others.
  template <class ReceivedOf>
  std::vector<const void*> partials(const void* own_partial, const ReceivedOf& received_of) const {
    std::vector<const void*> found;
    for (int host = 0; host < num_hosts(); ++host) {
      found.push_back(host == own() ? own_partial : received_of(host));
    }
    return found;
  }

  /// Memory of this object, the same as long as no more is asked for. No message may be under way
  /// in it.
  char* scratch(uint64_t bytes);

  /// Begins a call that exchanges envelopes, before it sends any.
  void begin(const HostCall& call, HostPath path);
  /// With the same data for each host, or `data_for(host)`.
  void send_envelopes(const HostCall& call, const void* data = nullptr, size_t bytes = 0) {
    send_envelopes(call, bytes, [data](int) { return data; });
  }
  template <class DataFor>
  void send_envelopes(const HostCall& call, size_t bytes, const DataFor& data_for) {
    each_other([&](int host) { send_envelope(call, host, data_for(host), bytes); });
  }
  /// Returns when all hosts have sent theirs. Raises MismatchError if they do not fit.
  void read_envelopes(const HostCall& call);
  /// The sum over the ranks in this rank's place (CallHeader::balance), until end_envelopes().
  uint64_t balance() const;
  /// The data in a host's, until end_envelopes().
  const char* enclosed(int host) const;
  /// Returns when its own have been sent: the group may be destroyed after the call.
  void end_envelopes(const HostCall& call);

  void expect(UnderWay& messages, int host, Mail mail, void* data, uint64_t bytes) {
    expect_of(messages, layout_.counterpart(host), mail, data, bytes);
  }
  void send(UnderWay& messages, int host, Mail mail, const void* data, uint64_t bytes) {
    send_to(messages, layout_.counterpart(host), mail, data, bytes);
  }
  /// The same with any rank of another host.
  void expect_of(UnderWay& messages, int rank, Mail mail, void* data, uint64_t bytes) {
    messages.push_back(wire_.receive(rank, mail, data, bytes));
  }
  void send_to(UnderWay& messages, int rank, Mail mail, const void* data, uint64_t bytes) {
    messages.push_back(wire_.send(rank, mail, data, bytes));
  }
  /// Early data, of at most thresholds().short_bytes. The memory is longer: a power of two.
  void expect_early(int host, char* room, uint64_t bytes) {
    expect(expected_, host, early_mail(bytes), room, early_length(bytes));
  }
  void send_early(int host, const char* data, uint64_t bytes) {
    send(sent_, host, early_mail(bytes), data, early_length(bytes));
  }
  static void wait(UnderWay& messages, const HostCall& call) { Wire::wait(messages, call.look); }
  /// Of calls in one piece. Members, since whoever drops a message may wait for it.
  UnderWay& expected() { return expected_; }
  UnderWay& sent() { return sent_; }

  /// Carries a long message out in chunks of `each` of `count` elements, with `bytes` of memory for
  /// each under way. Calls for each in turn `plan.prepare(chunk)`, which posts receives, then
  /// `open`, which sends once compared() has returned, `middle`, and `close`, which ends what is
  /// under way. Later chunks are opened before earlier ones are closed.
  template <class Plan>
  void in_chunks(HostCall& call, uint64_t count, uint64_t each, uint64_t bytes, Plan& plan) {
    const uint64_t chunks = ceil_div(count, each), under_way = smaller(chunks, kChunksUnderWay);
    char* const memory = scratch(under_way * bytes);
    compared_ = false;
    for (uint64_t index = 0; index < under_way; ++index) {
      ring_[index].memory = memory + index * bytes;
      ring_[index].span = cut(count, each, index);
      plan.prepare(ring_[index]);
    }
    send_envelopes(call);
    for (uint64_t turn = 0; turn < chunks + 2; ++turn) {
      if (turn < chunks) plan.open(ring_[turn % kChunksUnderWay]);
      if (turn >= 1 && turn <= chunks) plan.middle(ring_[(turn - 1) % kChunksUnderWay]);
      if (turn < 2) continue;
      Chunk& oldest = ring_[(turn - 2) % kChunksUnderWay];
      plan.close(oldest);
      if (turn + 1 >= chunks) continue;
      oldest.span = cut(count, each, turn + 1);
      plan.prepare(oldest);
    }
    compared(call);  // of no chunk
  }
  /// Of such a message: returns once the call is known to be the same on all hosts.
  void compared(const HostCall& call) {
    if (compared_) return;
    read_envelopes(call);
    end_envelopes(call);
    compared_ = true;
  }

 private:
  struct Envelope;

  static Mail early_mail(uint64_t bytes);
  static uint64_t early_length(uint64_t bytes);
  void post_envelope(int host, int parity);
  void send_envelope(const HostCall& call, int host, const void* data, size_t bytes);
  int parity() const { return static_cast<int>(envelopes_ & 1); }
  const Envelope& received(int host) const;

  const HostLayout layout_;
  const HostThresholds thresholds_;
  const int ranks_;
  Wire wire_;
  bool posted_ = false, compared_ = false;
  uint64_t envelopes_ = 0;                           // sent to each host
  std::vector<at::Tensor> written_;                  // by host
  std::vector<std::array<at::Tensor, 2>> received_;  // by host and parity, as what follows
  std::vector<std::array<Wire::Message, 2>> awaited_;
  CallHeader own_{};  // of the call
  UnderWay sent_envelopes_;
  at::Tensor scratch_;
  UnderWay expected_, sent_;
  std::array<Chunk, kChunksUnderWay> ring_;
};

}  // namespace fastcomm
