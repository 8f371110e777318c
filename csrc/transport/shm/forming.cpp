// Forming a group: the ranks agree on a nonce and on rank 0's configuration, then take four rounds
// through the store, with one value per rank each:
//
//   record     identity of this rank, its listening socket and window, the size that it can map of
//              the others' memory, or the reason why it has none
//   known      the others with which this process shares memory already, from other groups
//   reached    in each pair without a connection, the higher rank connects to the lower and sends
//              its descriptors; the value tells which of its connections were made
//   verdict    after the lower rank has answered and both have mapped and probed: "ok", or the
//              problem
//   shares     only if there is a problem: the others whose memory this rank reaches
//
// Every rank reads all verdicts, so all decide alike. No round waits on a socket whose other end
// did not announce itself.

#include "transport/shm/forming.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "transport/shm/room.h"
#include "transport/shm/shm_transport.h"

namespace fastcomm {
namespace {

constexpr const char* kOk = "ok";

/// One rank's rounds through the store.
class Rounds {
 public:
  Rounds(Bootstrap& store, uint64_t nonce, int rank, int size, Deadline deadline)
      : store_(store), prefix_(hex(nonce)), rank_(rank), size_(size), deadline_(deadline) {}

  /// As exchange(), for lists of peers.
  std::vector<std::string> exchange_masks(const char* round, const std::string& own) {
    auto all = exchange(round, own);
    for (int peer = 0; peer < size_; ++peer) check_mask(all[peer], size_, peer);
    return all;
  }

  std::vector<std::string> exchange(const char* round, const std::string& own) {
    store_.set(key(round, rank_), own);
    std::vector<std::string> all(size_);
    for (int peer = 0; peer < size_; ++peer) {
      all[peer] = peer == rank_ ? own : store_.get(key(round, peer), deadline_);
    }
    return all;
  }

 private:
  std::string key(const char* round, int rank) const {
    return concat(round, "/", prefix_, "/", rank);
  }
  Bootstrap& store_;
  std::string prefix_;
  int rank_;
  int size_;
  Deadline deadline_;
};

/// One attempt: holds the state to undo if the ranks find that they do not share memory.
class Forming {
 public:
  Forming(Endpoint* endpoint, int rank, int size, uint64_t nonce, Deadline deadline)
      : endpoint_(endpoint),
        rank_(rank),
        size_(size),
        nonce_(nonce),
        // The other side has announced itself: a handshake needs no more time than this.
        deadline_(std::min(deadline, Clock::now() + std::chrono::seconds(30))),
        peers_(size),
        shared_(size, '0') {}
  ~Forming() {
    if (has_window_) endpoint_->segment().free(window_, window_bytes_);
  }

  uint64_t open_window(size_t scratch_bytes) {
    window_bytes_ = sizeof(WindowHeader) + scratch_bytes;
    window_ = endpoint_->allocate(window_bytes_);
    has_window_ = true;
    endpoint_->segment().reserve(window_, sizeof(WindowHeader));
    auto* header = new (endpoint_->segment().mapping().at(window_)) WindowHeader{};
    header->nonce.store(nonce_);
    return window_;
  }

  /// Bytes of each segment that this rank can map, its own included.
  uint64_t room() {
    Segment& segment = endpoint_->segment();
    return room_for_each(size_, segment.settled() ? 0 : segment.mapping().bytes());
  }
  /// The first group of a process fixes the size of its segment: as much as all of the ranks can
  /// map.
  void settle_segment(const std::vector<Record>& records) {
    uint64_t most = kNoLimit;
    for (const Record& record : records) most = std::min(most, record.room);
    try {
      endpoint_->segment().settle(most);
    } catch (const Error& error) {
      complaint_ = concat("rank ", rank_, ": ", error.what());
    }
  }

  std::string known(const std::vector<Record>& records) {
    std::string mask(size_, '0');
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_ || records[peer].id == endpoint_->id()) {
        peers_[peer] = self();
      } else {
        peers_[peer] = endpoint_->find(records[peer].id);
      }
      if (peers_[peer] != nullptr) mask[peer] = '1';
    }
    return mask;
  }

  /// Connects to the lower ranks that do not know this one, or that this one does not know.
  std::string reach(const std::vector<Record>& records, const std::vector<std::string>& known) {
    std::string mask(size_, '0');
    sockets_.resize(size_);
    for (int peer = 0; peer < rank_; ++peer) {
      if (!unknown(known, peer)) continue;
      try {
        sockets_[peer] =
            introduce(records[peer].listener, endpoint_->hello(nonce_), endpoint_->files());
        mask[peer] = '1';
      } catch (const Error& error) {
        complain(peer, error.what());
      }
    }
    return mask;
  }

  /// Answers the higher ranks that came, takes the answers of the lower ones, and probes.
  std::string settle(const Listener& listener, const std::vector<Record>& records,
                     const std::vector<std::string>& known,
                     const std::vector<std::string>& reached) {
    try {
      int expected = 0;
      for (int peer = rank_ + 1; peer < size_; ++peer) {
        if (unknown(known, peer) && reached[peer][rank_] == '1') ++expected;
      }
      // A peer whose memory cannot be mapped must not keep the others from their answers.
      for (; expected > 0; --expected) {
        adopt(records, accept_introduction(listener, endpoint_->hello(nonce_), endpoint_->files(),
                                           deadline_));
      }
      for (int peer = 0; peer < rank_; ++peer) {
        if (sockets_[peer].get() < 0) continue;
        adopt(records, await_answer(sockets_[peer], nonce_, deadline_));
      }
      for (int peer = 0; peer < size_; ++peer) probe(records, peer);
    } catch (const Error& error) {
      if (complaint_.empty()) complaint_ = concat("rank ", rank_, ": ", error.what());
    }
    return complaint_.empty() ? kOk : complaint_;
  }

  /// The peers that settle() has found to share memory.
  const std::string& reached_memory() const { return shared_; }

  std::unique_ptr<Transport> finish(const std::vector<Record>& records) {
    has_window_ = false;  // the group's now
    std::vector<Seat> seats;
    std::vector<CoreSet> cores;
    for (int peer = 0; peer < size_; ++peer) {
      seats.push_back({std::move(peers_[peer]), records[peer].window});
      cores.push_back(records[peer].cores);
    }
    return std::make_unique<ShmTransport>(*endpoint_, rank_, nonce_, window_bytes_,
                                          std::move(seats),
                                          size_ > quota_cores() || outnumber_cores(cores));
  }

 private:
  bool unknown(const std::vector<std::string>& known, int peer) const {
    return known[rank_][peer] != '1' || known[peer][rank_] != '1';
  }

  void complain(int peer, const std::string& what) {
    if (complaint_.empty()) {
      complaint_ = concat("rank ", rank_, " shares no memory with rank ", peer, ": ", what);
    }
  }

  std::shared_ptr<PeerProcess> self() {
    auto process = std::make_shared<PeerProcess>();
    process->id = endpoint_->id();
    process->pid = getpid();
    // Not owned: the endpoint outlives its groups.
    process->mapping =
        std::shared_ptr<const Mapping>(std::shared_ptr<void>(), &endpoint_->segment().mapping());
    return process;
  }

  void adopt(const std::vector<Record>& records, Introduction introduction) {
    const EndpointId id = introduction.hello.id;
    for (int peer = 0; peer < size_; ++peer) {
      if (!(records[peer].id == id)) continue;
      try {
        peers_[peer] = endpoint_->adopt(std::move(introduction));
      } catch (const Error& error) {
        complain(peer, error.what());
      }
      return;
    }
  }

  void probe(const std::vector<Record>& records, int peer) {
    if (peers_[peer] == nullptr) return complain(peer, "it did not connect");
    const Mapping& mapping = *peers_[peer]->mapping;
    const uint64_t window = records[peer].window;
    if (window % kLineBytes != 0 || window > mapping.bytes() ||
        window_bytes_ > mapping.bytes() - window) {
      return complain(peer, "its window lies outside of its segment");
    }
    const auto* header = reinterpret_cast<const WindowHeader*>(mapping.at(window));
    if (!mapping.readable(window, sizeof(WindowHeader)) || header->nonce.load() != nonce_) {
      return complain(peer, "what it wrote is not what is read here");
    }
    shared_[peer] = '1';
  }

  Endpoint* endpoint_;
  int rank_;
  int size_;
  uint64_t nonce_;
  Deadline deadline_;
  uint64_t window_ = 0;
  size_t window_bytes_ = 0;
  bool has_window_ = false;
  std::vector<std::shared_ptr<PeerProcess>> peers_;
  std::vector<Fd> sockets_;
  std::string shared_;  // the peers that probe() has passed
  std::string complaint_;
};

}  // namespace

ShmTransportResult make_shm_transport(Bootstrap& store, int rank, int size, Endpoint* endpoint,
                                      const std::string& why_not, const GroupConfig& wanted,
                                      size_t (*scratch_bytes)(const GroupConfig&, int size),
                                      Deadline deadline) {
  FC_CHECK(size >= 1 && size <= kMaxRanks, "a group has 1 to ", kMaxRanks, " ranks, not ", size);
  // With the nonce comes rank 0's configuration: the size of a window depends on it.
  const Agreement agreed = agree(store, rank, size, to_bytes(wanted), deadline);
  const GroupConfig config = parse_config(agreed.told);
  const uint64_t nonce = agreed.nonce;
  Rounds rounds(store, nonce, rank, size, deadline);
  ShmTransportResult result;
  result.config = config;
  result.nonce = nonce;

  Forming forming(endpoint, rank, size, nonce, deadline);
  Record record{};
  record.version = kProtocolVersion;
  record.pid = getpid();
  record.cores = own_cores();
  std::unique_ptr<Listener> listener;
  std::string problem = why_not;
  if (endpoint != nullptr) {
    try {
      record.id = endpoint->id();
      record.window = forming.open_window(scratch_bytes(config, size));
      record.room = forming.room();
      listener = std::make_unique<Listener>();
      cut_text(record.listener, sizeof(record.listener), listener->name().c_str());
    } catch (const Error& error) {
      record.listener[0] = '\0';
      problem = error.what();
    }
  }
  cut_text(record.why_not, sizeof(record.why_not), problem.c_str());

  std::vector<Record> records(size);
  const auto raw = rounds.exchange("record", to_bytes(record));
  for (int peer = 0; peer < size; ++peer) {
    records[peer] = parse_record(raw[peer], peer);
    if (records[peer].version != kProtocolVersion) {
      result.reason = concat("rank ", peer, " runs another version of fastcomm");
    } else if (records[peer].listener[0] == '\0' && result.reason.empty()) {
      result.reason = concat("rank ", peer, " has no shared memory: ", records[peer].why_not);
    }
  }
  if (!result.reason.empty()) return result;  // the same on every rank: all read all records

  forming.settle_segment(records);
  const auto known = rounds.exchange_masks("known", forming.known(records));
  const auto reached = rounds.exchange_masks("reached", forming.reach(records, known));
  const auto verdicts =
      rounds.exchange("verdict", forming.settle(*listener, records, known, reached));
  for (int peer = 0; peer < size; ++peer) {
    const std::string& verdict = verdicts[peer];
    if (verdict == kOk) continue;
    result.reason = verdict.empty() ? concat("rank ", peer, " did not say why") : verdict;
    result.shares = rounds.exchange_masks("shares", forming.reached_memory());
    return result;
  }
  result.group = forming.finish(records);
  return result;
}

}  // namespace fastcomm
