#include "c10d/engines/hosts/host_messages.h"

#include "c10d/engines/hosts/gather_in_chunks.h"

namespace fastcomm {
namespace {

/// Of the messages between two ranks, as one of them has them.
struct Sizes {
  static constexpr uint64_t kAny = UINT64_MAX;  // whatever the other one sends

  uint64_t sends, expects;
};
static_assert(sizeof(Sizes) * kMaxRanks <= HostExchange::kEnclosedBytes, "fit an envelope");

[[noreturn]] void refuse(int from, uint64_t sent, int to, uint64_t expected) {
  throw Error(ErrorCode::kMismatch,
              concat("rank ", from, " sends ", sent, " bytes to rank ", to, ", which expects ",
                     expected, ". No memory was touched"));
}

/// The messages of a call between this rank and those of other hosts.
class Abroad {
 public:
  Abroad(HostCall& call, HostInside& inside, HostExchange& between)
      : call_(call),
        inside_(inside),
        between_(between),
        messages_(*call.call.messages),
        own_(between.own_rank()),
        ranks_(static_cast<uint64_t>(inside.size())) {}

  /// Returns once it is known that those of all ranks fit.
  void compare() {
    between_.begin(call_, HostPath::kLong);
    // Whoever sends has found that it fits.
    for (int host = 0; host < between_.num_hosts() && !messages_.place; ++host) {
      for (uint64_t place = 0; place < ranks_ && host != between_.own(); ++place) {
        expect_from(rank_of(host, place));
      }
    }
    std::vector<Sizes> own(ranks_);
    between_.send_envelopes(call_, ranks_ * sizeof(Sizes), [&](int host) {
      for (uint64_t place = 0; place < ranks_; ++place) {
        const auto other = static_cast<size_t>(rank_of(host, place));
        own[place] = {messages_.sends[other].bytes,
                      messages_.place ? Sizes::kAny : messages_.receives[other].bytes};
      }
      return own.data();
    });
    inside_.barrier(call_);  // its own host agrees, before it waits for another
    between_.read_envelopes(call_);
    // From each host, what the rank in this rank's place has with each of this host.
    std::vector<Sizes> got{{between_.balance(), 0}};
    between_.each_other([&](int host) {
      const auto* sizes = reinterpret_cast<const Sizes*>(between_.enclosed(host));
      got.insert(got.end(), sizes, sizes + ranks_);
    });
    gathered_.resize(ranks_ * got.size());
    std::vector<void*> outputs;
    for (uint64_t place = 0; place < ranks_; ++place) outputs.push_back(gathered(place));
    inside_.all_gather(call_, DType::kOther, got.data(), got.size() * sizeof(Sizes),
                       std::move(outputs));
    between_.end_envelopes(call_);
    each_rank([&](int rank, const Sizes& sizes) {
      const uint64_t sends = messages_.sends[rank].bytes;
      const uint64_t expects = messages_.receives[rank].bytes;
      if (sizes.expects != Sizes::kAny && sizes.expects != sends) {
        refuse(own_, sends, rank, sizes.expects);
      }
      if (!messages_.place && sizes.sends != expects) refuse(rank, sizes.sends, own_, expects);
    });
    uint64_t balance = 0;
    for (uint64_t place = 0; place < ranks_; ++place) balance += gathered(place)->sends;
    if (balance != 0) {  // of other ranks
      throw Error(ErrorCode::kMismatch,
                  "the split sizes of the ranks do not fit each other. No memory was touched. What "
                  "a rank sends to another must be what that expects");
    }
  }

  void start() {
    each_rank([&](int rank, const Sizes& sizes) {
      if (!messages_.place) return;
      messages_.receives[rank] = {messages_.place(rank, sizes.sends), sizes.sends};
      expect_from(rank);
    });
    each_rank([&](int rank, const Sizes&) {
      const auto& sent = messages_.sends[rank];
      between_.send_to(between_.sent(), rank, Mail::kResult, sent.data, sent.bytes);
    });
  }

  void finish() {
    HostExchange::wait(between_.expected(), call_);
    HostExchange::wait(between_.sent(), call_);
  }

 private:
  void expect_from(int rank) {
    const auto& expected = messages_.receives[rank];
    between_.expect_of(between_.expected(), rank, Mail::kResult, expected.data, expected.bytes);
  }
  int rank_of(int host, uint64_t place) const { return between_.layout().hosts[host][place]; }
  /// The balance of the ranks in one place; then from each host, in its ranks' order, what the one
  /// there has with each of this host.
  Sizes* gathered(uint64_t place) { return gathered_.data() + place * (gathered_.size() / ranks_); }
  /// Calls visit(rank, its sizes with this rank) for each of another host.
  template <class Visit>
  void each_rank(const Visit& visit) {
    for (uint64_t place = 0; place < ranks_; ++place) {
      const Sizes* at = gathered(place) + 1 + inside_.rank();
      between_.each_other([&](int host) {
        visit(rank_of(host, place), *at);
        at += ranks_;
      });
    }
  }

  HostCall& call_;
  HostInside& inside_;
  HostExchange& between_;
  Messages& messages_;
  const int own_;
  const uint64_t ranks_;
  std::vector<Sizes> gathered_;
};

/// Those among the ranks of this host.
void exchange_at_home(HostCall& call, HostInside& inside, const std::vector<int>& ranks) {
  Messages& all = *call.call.messages;
  auto home = std::make_shared<Messages>(inside.size());
  for (int place = 0; place < inside.size(); ++place) {
    home->sends[place] = all.sends[ranks[place]];
    home->receives[place] = all.receives[ranks[place]];
  }
  if (all.place) {
    home->place = [&](int from, uint64_t bytes) { return all.place(ranks[from], bytes); };
  }
  home->same_for_all = all.same_for_all;
  inside.exchange(call, home);
  for (int place = 0; place < inside.size(); ++place) {
    all.receives[ranks[place]] = home->receives[place];
  }
}

/// Straight between the user's tensors.
struct OwnPlaces {
  const Messages& messages;

  uint64_t bytes(int rank) const { return messages.receives[rank].bytes; }
  uint64_t room(uint64_t) const { return 0; }
  const char* own(const Span& span, int rank, char*) const {
    return messages.sends[rank].data + span.first;
  }
  char* place(const Span& span, int rank, char*) const {
    return messages.receives[rank].data + span.first;
  }
  void done(const Span&, int, char*) const {}
};

}  // namespace

void exchange_messages(HostCall& call, HostInside& inside, HostExchange& between) {
  Abroad abroad(call, inside, between);
  abroad.compare();
  abroad.start();
  exchange_at_home(call, inside, between.layout().hosts[between.own()]);
  abroad.finish();
}

void gather_uneven(HostCall& call, HostInside& inside, HostExchange& between) {
  const Messages& messages = *call.call.messages;
  const int own = between.own_rank();
  const uint64_t sent = messages.sends[own].bytes, expected = messages.receives[own].bytes;
  if (sent != expected) refuse(own, sent, own, expected);
  gather_in_chunks(call, inside, between, OwnPlaces{messages});
}

}  // namespace fastcomm
