// Links between the ranks of a group that share no memory: TCP connections beside those that move
// data, which carry nothing while all goes well.
//
// A process that ends, however it does, closes its links: the kernel tells the others at once. A
// link that is cut, or a host that is gone, is known when the other end's kernel has not answered
// for a while; a process that is stopped still answers. So both are told apart from a rank that is
// merely late, which no timeout on data can do. A rank that fails tells the others the reason, and
// they pass it on; one that leaves in order says so first.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "transport/tcp/link_forming.h"

namespace fastcomm {

/// The end of a group, in the words of the rank that noticed it first.
struct Notice {
  ErrorCode code;
  int blamed;        // -1: nobody
  int teller;        // the rank whose words these are
  std::string text;  // at most kMostText bytes are sent
  /// What the teller had to do for operations before this number is done: they end well.
  uint64_t before = 0;

  static constexpr size_t kMostText = 1000;
};

/// Thread-safe. One thread for each group listens. In a child of fork() the links are closed, so
/// that it does not keep its parent alive in the others' eyes: it must abandon this object.
class PeerLinks {
 public:
  /// What the group does. Called on the thread that listens, but for issued().
  struct Group {
    /// Once: what a peer told, or what was seen here.
    std::function<void(const Notice&)> heard;
    /// A peer has left in order after `issued` operations, and then closed its link.
    std::function<void(int peer, const std::string& how, uint64_t issued)> departed;
    /// The number of operations that this rank has issued, for peers that ask.
    std::function<uint64_t()> issued;
  };

  /// `silence`: how long a peer's kernel may not answer. Zero: for ever.
  PeerLinks(int rank, std::vector<LinkedPeer> peers, Milliseconds silence);
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;
  ~PeerLinks();

  /// Listens from here on. Raises Error(kSystem) if no thread can be started.
  void start(Group group);
  /// Tells the peers why the group has failed, the first time. Waits for nobody.
  void tell(const Notice& notice);
  /// Says that this rank leaves in order: "destroyed its process group". From here on nothing is
  /// heard. Idempotent; waits for nobody.
  void leave(const std::string& how);
  /// Leaves, and hears nothing more: when this returns, the group is not called. Idempotent.
  void stop();
  /// Who has issued fewer than `count` operations, in words, after asking the peers, which takes a
  /// moment if one is stopped: "rank 3 (pid 7 on node3) has issued 4 operations, this rank 5". ""
  /// if none has.
  std::string late_ranks(uint64_t count);
  /// Waits for a peer's words, or for its end to be seen, for at most a moment. True if one came,
  /// or this rank has told of a failure.
  bool hears_soon();
  /// The ranks that have left in order, and how.
  std::vector<std::pair<int, std::string>> left() const;
  /// A peer that has left and closed its link a while ago, and how: `peer`, or for -1 the first if
  /// all have.
  std::optional<std::pair<int, std::string>> gone(int peer) const;
  /// The peers without a link, as "rank 3 (pid 7 on node3)".
  std::vector<std::string> missing() const;
  /// "rank 3 (pid 7 on node3)", or "rank 3".
  std::string describe(int rank) const;

  /// Leaves in all groups of this process.
  static void leave_all(const std::string& how);

 private:
  struct Frame;
  struct Link {
    LinkedPeer peer;
    bool open = false;                       // nothing has ended it, as seen here
    bool ready = false;                      // the peer has it too
    bool left = false;                       // in order
    std::string how;                         // it left
    Deadline departed_at = Deadline::max();  // when the group is to be told that it is gone
    bool gone = false;                       // that has passed
    std::string received;                    // of the next frame
    uint64_t answers = 0;                    // how many of its have come
    uint64_t issued = 0;                     // the last one
  };
  struct Registry;
  static Registry& registry();

  void run();
  /// Reads all that is there.
  void read(Link& link);
  void take(Link& link, const Frame& frame);
  void ended(Link& link, int error);
  void hear(const Notice& notice, std::unique_lock<std::mutex>& lock);
  void depart(Link& link, std::unique_lock<std::mutex>& lock);
  Notice verdict() const;
  void send_all(const Frame& frame);
  static void send_to(const Link& link, const Frame& frame);

  const int rank_;
  const Milliseconds silence_;
  Fd wake_;
  Group group_;
  mutable std::mutex mutex_;  // guards the members below
  std::vector<Link> links_;
  std::vector<int> dead_, silent_;
  std::optional<Notice> told_;  // the first one of the peers
  Deadline verdict_at_ = Deadline::max();
  bool has_told_ = false, has_left_ = false, has_heard_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace fastcomm
