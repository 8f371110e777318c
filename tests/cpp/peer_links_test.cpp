// Links between ranks of several hosts, over the loopback interface: ranks are threads; who dies is
// a process.
//
//   peer_links_test CASE SEED
#include "transport/tcp/peer_links.h"

#include <sys/socket.h>

#include <condition_variable>
#include <csignal>

#include "fork_world.h"
#include "transport/tcp/link_sockets.h"

namespace fastcomm::testing {
namespace {

constexpr Milliseconds kPatience{20'000}, kSilence{10'000};

Deadline soon() { return Clock::now() + std::chrono::seconds(60); }

/// A store that threads share.
class ThreadStore final : public Bootstrap {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  bool has(const std::string& key) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return values_.count(key) != 0;
  }
  std::string get(const std::string& key, Deadline deadline) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [&] { return values_.count(key) != 0; })) {
      throw Error(ErrorCode::kTimeout, "no value for " + key);
    }
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// A rank, and what it has heard; passes it on, as a group does.
struct Member {
  Member(Bootstrap& store, int rank, int size, Milliseconds patience = kPatience)
      : links(rank, connect_links(store, rank, size, soon(), patience), kSilence) {
    links.start({[this](const Notice& notice) {
                   links.tell(notice);
                   const std::lock_guard<std::mutex> lock(mutex);
                   heard.push_back(notice);
                   changed.notify_all();
                 },
                 [this](int peer, const std::string& how, uint64_t count) {
                   const std::lock_guard<std::mutex> lock(mutex);
                   gone.push_back(concat(peer, " ", how, " after ", count));
                   changed.notify_all();
                 },
                 [this] { return issued.load(); }});
  }
  ~Member() { links.stop(); }
  Notice hear() {
    std::unique_lock<std::mutex> lock(mutex);
    const bool came = changed.wait_until(lock, soon(), [&] { return !heard.empty(); });
    EXPECT(came, "nothing was heard");
    return came ? heard.front() : Notice{};
  }
  size_t times_heard() {
    const std::lock_guard<std::mutex> lock(mutex);
    return heard.size();
  }

  std::atomic<uint64_t> issued{0};
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Notice> heard;
  std::vector<std::string> gone;
  PeerLinks links;
};

using Members = std::vector<std::unique_ptr<Member>>;

Members formed(int size) {
  ThreadStore store;
  Members members(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back(
        [&, rank] { members[rank] = std::make_unique<Member>(store, rank, size); });
  }
  for (auto& thread : threads) thread.join();
  return members;
}

/// Waits, since what is awaited is on its way.
template <class Condition>
void until(const Condition& condition, const char* what) {
  const Deadline end = soon();
  while (!condition() && Clock::now() < end) std::this_thread::sleep_for(Milliseconds(1));
  EXPECT(condition(), "not within a minute: ", what);
}

CASE(who_is_linked) {
  for (const int size : {1, 2, 3, 5, 64, 65, 96, 127, 128, 1000}) {
    for (int rank = 0; rank < size; ++rank) {
      const auto ranks = linked_ranks(rank, size);
      EXPECT(ranks.size() < 64, size, " ranks");
      if (size <= 64) EXPECT(ranks.size() == static_cast<size_t>(size) - 1);
      for (const int other : ranks) {
        const auto back = linked_ranks(other, size);
        EXPECT(other != rank && std::count(back.begin(), back.end(), rank) == 1);
      }
    }
  }
}

/// What one rank tells, all hear once, in its words; also those that it has no link with.
CASE(a_notice) {
  for (const int size : {2, 5, 70}) {
    const Members members = formed(size);
    for (const auto& member : members) EXPECT(member->links.missing().empty());
    const std::string text(seed % 2 == 0 ? 20 : Notice::kMostText, 'x');
    members[1]->links.tell({ErrorCode::kMismatch, 0, 1, text + "beyond"});
    for (int rank = 0; rank < size; ++rank) {
      if (rank == 1) continue;
      const Notice notice = members[rank]->hear();
      EXPECT(notice.code == ErrorCode::kMismatch && notice.blamed == 0 && notice.teller == 1);
      EXPECT(notice.text == (text + "beyond").substr(0, Notice::kMostText), notice.text.size());
      EXPECT(members[rank]->links.hears_soon());
      EXPECT(members[rank]->times_heard() == 1);
    }
  }
}

/// Who leaves is not missed, and who left first hears nothing of the others.
CASE(leaving) {
  Members members = formed(3);
  members[0]->issued = 5;
  members[0]->links.leave("has done its work");
  for (const int rank : {1, 2}) {
    until([&] { return !members[rank]->links.left().empty(); }, "rank 0 has left");
    EXPECT(members[rank]->links.left().front().first == 0);
    EXPECT(members[rank]->links.left().front().second == "has done its work");
  }
  EXPECT(members[1]->gone.empty());  // its links are open
  EXPECT(members[1]->links.late_ranks(0).empty());
  members[0]->links.stop();
  EXPECT(members[0]->times_heard() == 0);
  members[0].reset();
  for (const int rank : {1, 2}) {
    until(
        [&] {
          const std::lock_guard<std::mutex> lock(members[rank]->mutex);
          return members[rank]->gone == std::vector<std::string>{"0 has done its work after 5"};
        },
        "rank 0 is gone");
  }
  EXPECT(!members[1]->links.hears_soon());
  members[1]->links.tell({ErrorCode::kTimeout, -1, 1, "late"});
  EXPECT(members[2]->hear().text == "late");
}

CASE(who_is_late) {
  const Members members = formed(3);
  for (const auto& member : members) member->issued = 7;
  EXPECT(members[0]->links.late_ranks(7).empty());
  members[2]->issued = 6;
  const std::string late = members[0]->links.late_ranks(7);
  EXPECT(late.find("rank 2 (pid ") == 0, late);
  EXPECT(late.find(") has issued 6 operations") != std::string::npos, late);
  EXPECT(late.find("rank 1") == std::string::npos, late);
}

/// Killed, or ended without leaving: by the kernel, however many hold its descriptors.
CASE(death) {
  ForkedStore store;
  const auto pids = start_processes(4, [&](int rank) {
    Member member(store, rank, 4);
    if (rank == 2) {
      const pid_t worker = fork();
      if (worker == 0) {  // it outlives its parent, with all that it inherited
        std::this_thread::sleep_for(std::chrono::seconds(10));
        store.set("the worker has ended", "");
        _exit(0);
      }
      store.set("worker", std::to_string(worker));
      until([&] { return store.has("ready 0") && store.has("ready 1") && store.has("ready 3"); },
            "the others");
      kill(getpid(), SIGKILL);
    }
    store.set(concat("ready ", rank), "");
    const Notice notice = member.hear();
    EXPECT(!store.has("the worker has ended"), "noticed when a forked child ended");
    EXPECT(notice.code == ErrorCode::kPeerLost && notice.blamed == 2);
    EXPECT(notice.text.find("rank 2 (pid ") == 0, notice.text);
    EXPECT(notice.text.find("died") != std::string::npos, notice.text);
    store.set(concat("done ", rank), "");
    until([&] { return store.has("done 0") && store.has("done 1") && store.has("done 3"); },
          "the others");  // who ends before would be a second death
    if (rank == 0) kill(std::stoi(store.get("worker", soon())), SIGKILL);
  });
  await_processes(pids, [](int rank, int status) {
    return rank == 2 ? ended_by(status, SIGKILL) : ended_well(status);
  });
}

/// Strangers at the listener's port keep nobody from it.
CASE(strangers) {
  ThreadStore store;
  std::atomic<bool> over{false};
  std::thread crowd([&] {
    std::mt19937_64 bits(seed);
    std::istringstream card(store.get("rank 0", soon()));
    uint64_t token = 0;
    uint16_t port = 0;
    card >> token >> port;
    std::vector<Fd> open;
    while (!over) {
      Fd fd = connect_link("127.0.0.1", port);
      std::this_thread::sleep_for(Milliseconds(2));
      // A greeting in which one word is wrong; some end early, some stay.
      uint64_t words[3] = {0x6b6e696c6d6d6366, token, 1};
      words[bits() % 3] ^= uint64_t{1} << (bits() % 64);
      static_cast<void>(send(fd.get(), words, 1 + bits() % sizeof(words), MSG_NOSIGNAL));
      if (bits() % 2 == 0) open.push_back(std::move(fd));
    }
  });
  std::unique_ptr<Member> members[2];
  std::thread first([&] { members[0] = std::make_unique<Member>(store, 0, 2); });
  std::this_thread::sleep_for(Milliseconds(100));
  std::thread second([&] { members[1] = std::make_unique<Member>(store, 1, 2); });
  first.join();
  second.join();
  over = true;
  crowd.join();
  for (const auto& member : members) EXPECT(member->links.missing().empty());
  members[0]->links.tell({ErrorCode::kTimeout, -1, 0, "hello"});
  EXPECT(members[1]->hear().text == "hello");
}

/// A rank that cannot be reached has no link, and is not missed when it ends.
CASE(missing) {
  ThreadStore store;
  store.set("rank 1", "1234 1 127.0.0.1\npid 7 on nowhere");  // nobody listens there
  Member member(store, 0, 2, Milliseconds(200));
  EXPECT(member.links.missing() == std::vector<std::string>{"rank 1 (pid 7 on nowhere)"});
  EXPECT(!member.links.hears_soon());
  ErrorCode code{};
  store.set("rank 1", "no card");
  const auto again = [&] { connect_links(store, 0, 2, soon(), Milliseconds(1)); };
  EXPECT(error_of(again, &code).find("no card") != std::string::npos && code == ErrorCode::kSystem);
  ThreadStore empty;
  const auto nobody = [&] { connect_links(empty, 0, 2, Clock::now(), Milliseconds(1)); };
  EXPECT(!error_of(nobody, &code).empty() && code == ErrorCode::kTimeout);
}

/// A rank, and the other end of its only link, of which the test does what it likes.
struct BareEnd {
  ThreadStore store;
  std::vector<LinkedPeer> raw;
  std::thread other{[this] { raw = connect_links(store, 1, 2, soon(), kPatience); }};
  Member member{store, 0, 2};

  BareEnd() {
    other.join();
    EXPECT(raw.size() == 1 && raw[0].fd.get() >= 0);
  }
};

/// A rank that gave its link up while they formed, and never spoke over it, is not dead.
CASE(given_up) {
  BareEnd end;
  Member& member = end.member;
  end.raw.clear();
  EXPECT(!member.links.hears_soon() && member.times_heard() == 0, "a living rank was called dead");
}

/// Bytes of a rank that is not trusted to be right: in pieces, with wrong numbers, of no kind.
CASE(bytes) {
  std::mt19937_64 bits(seed);
  BareEnd end;
  Member& member = end.member;
  auto& raw = end.raw;
  member.links.tell({ErrorCode::kTimeout, 1, 0, "a text"});
  // Its word of readiness, and its notice: frames as this build lays them out.
  std::string sent;
  char some[4096];
  until(
      [&] {
        const ssize_t got = recv(raw[0].fd.get(), some, sizeof(some), MSG_DONTWAIT);
        if (got > 0) sent.append(some, static_cast<size_t>(got));
        return sent.find("a text") != std::string::npos && sent.size() % 2 == 0 &&
               sent.size() >= 2 * (sent.find("a text") / 2);
      },
      "its frames");
  const size_t size = sent.size() / 2;
  std::string frame = sent.substr(size);
  const auto give = [&](const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const size_t piece = std::min<size_t>(1 + bits() % 700, bytes.size() - at);
      EXPECT(send(raw[0].fd.get(), &bytes[at], piece, MSG_NOSIGNAL) == static_cast<ssize_t>(piece));
      at += piece;
    }
  };
  const auto with = [&](size_t word, int32_t value) {
    std::string changed = frame;
    std::memcpy(&changed[4 * word], &value, sizeof(value));
    return changed;
  };
  give(with(0, 77));  // a kind that nobody knows
  give(with(0, -1));
  std::string endless = with(1, 99);  // a code that nobody knows, and a text without an end
  std::fill(endless.begin() + static_cast<ptrdiff_t>(endless.find("a text")), endless.end(), 'y');
  give(endless);
  const Notice notice = member.hear();
  EXPECT(notice.code == ErrorCode::kPoisoned, static_cast<int>(notice.code));
  EXPECT(notice.text.size() < size && notice.text.find_first_not_of('y') == std::string::npos);
  give(frame);
  raw.clear();
  std::this_thread::sleep_for(Milliseconds(300));
  EXPECT(member.times_heard() == 1);
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
