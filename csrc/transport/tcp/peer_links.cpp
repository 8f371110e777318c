#include "transport/tcp/peer_links.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "core/control.h"
#include "core/thread_name.h"
#include "core/utf8.h"
#include "transport/fork.h"
#include "transport/tcp/link_sockets.h"

namespace fastcomm {
namespace {

/// From the first end of a link to the verdict: a host that dies ends several, and a rank that dies
/// because of an error may have told it to others.
constexpr Milliseconds kGather{100};
/// The same for links that are silent: the kernel asks at each once a second.
constexpr Milliseconds kGatherSilent{1200};
/// For answers; a process that is stopped gives none.
constexpr Milliseconds kAnswers{200};
/// From the error of a connection that moves data to the words that explain it: whoever ends its
/// connections may ask first.
constexpr Milliseconds kSoon{600};
static_assert(kSoon > 2 * kAnswers);

enum class Kind : int32_t { kReady, kLeft, kNotice, kQuestion, kAnswer };

ErrorCode code_in(int32_t received) {
  const bool known = received >= 0 && received <= static_cast<int32_t>(ErrorCode::kForked);
  return known ? static_cast<ErrorCode>(received) : ErrorCode::kPoisoned;
}

/// "ranks 2, 3"
std::string ranks_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (const int rank : ranks) text += concat(rank == ranks[0] ? "" : ", ", rank);
  return text;
}

}  // namespace

/// What goes over a link. Ranks are of one byte order.
struct PeerLinks::Frame {
  int32_t kind, code, blamed, teller;
  uint64_t count = 0;
  char text[Notice::kMostText + 8] = {};

  Frame(Kind what, const std::string& words)
      : kind(static_cast<int32_t>(what)), code(0), blamed(-1), teller(-1) {
    const std::string_view beginning = beginning_of(words, Notice::kMostText);
    std::memcpy(text, beginning.data(), beginning.size());
  }
  explicit Frame(const Notice& notice) : Frame(Kind::kNotice, notice.text) {
    code = static_cast<int32_t>(notice.code);
    blamed = notice.blamed;
    teller = notice.teller;
    count = notice.before;
  }
  explicit Frame(const char* bytes) {
    std::memcpy(static_cast<void*>(this), bytes, sizeof(*this));
    text[sizeof(text) - 1] = '\0';
  }
};

/// All of the process.
struct PeerLinks::Registry {
  std::mutex mutex;  // taken before those of the listed objects
  std::vector<PeerLinks*> all;

  Registry() {
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] {
                     for (PeerLinks* each : registry().all) {
                       if (FC_LEFT_OUT(Control::kKeepLinks)) break;
                       for (Link& link : each->links_) link.peer.fd = Fd();
                     }
                     registry().all.clear();
                     registry().mutex.unlock();
                   });
  }
};

PeerLinks::Registry& PeerLinks::registry() {
  static auto* shared = new Registry;  // a group may outlive the static objects
  return *shared;
}

PeerLinks::PeerLinks(int rank, std::vector<LinkedPeer> peers, Milliseconds silence)
    : rank_(rank), silence_(silence), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  FC_SYSCALL(wake_.get() >= 0, "eventfd");
  for (LinkedPeer& peer : peers) {
    Link link;
    link.peer = std::move(peer);
    link.open = link.peer.fd.get() >= 0;
    if (link.open) end_when_silent(link.peer.fd.get(), silence_);
    links_.push_back(std::move(link));
  }
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().all.push_back(this);
}

PeerLinks::~PeerLinks() {
  {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    auto& all = registry().all;
    all.erase(std::remove(all.begin(), all.end(), this), all.end());
  }
  stop();
}

void PeerLinks::stop() {
  leave("dropped its process group");
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void PeerLinks::start(Group group) {
  group_ = std::move(group);
  send_all(Frame(Kind::kReady, ""));
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kSystem,
                concat("no thread can be started that listens to other hosts: ", error.what(),
                       ". Raise ulimit -u or the container's limit on processes"));
  }
}

/// A frame fits the socket's buffer unless the peer is stopped and many went before: then it is
/// lost, and that peer finds its connections ended when it goes on.
void PeerLinks::send_to(const Link& link, const Frame& frame) {
  static_cast<void>(send(link.peer.fd.get(), &frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT));
}

void PeerLinks::send_all(const Frame& frame) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Link& link : links_) {
    if (link.open) send_to(link, frame);
  }
}

void PeerLinks::tell(const Notice& notice) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (has_told_ || has_left_) return;
    has_told_ = true;
  }
  send_all(Frame(notice));
}

void PeerLinks::leave(const std::string& how) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (has_left_) return;
    has_left_ = true;
  }
  Frame frame(Kind::kLeft, how);
  if (group_.issued) frame.count = group_.issued();
  send_all(frame);
}

std::string PeerLinks::late_ranks(uint64_t count) {
  std::vector<uint64_t> before;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Link& link : links_) before.push_back(link.answers);
  }
  send_all(Frame(Kind::kQuestion, ""));
  const Deadline end = Clock::now() + kAnswers;
  for (;;) {
    std::string late;
    bool all = true;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (size_t i = 0; i < links_.size(); ++i) {
        const Link& link = links_[i];
        const bool answered = link.answers > before[i];
        if (!link.open || link.left || (answered && link.issued >= count)) continue;
        late += concat(late.empty() ? "" : "; ", describe(link.peer.rank));
        late += answered
                    ? concat(" has issued ", link.issued,
                             link.issued == 1 ? " operation" : " operations", ", this rank ", count)
                    : " does not answer: maybe it is stopped";
        all = all && answered;
      }
    }
    if (all || Clock::now() > end) return late;
    std::this_thread::sleep_for(Milliseconds(1));
  }
}

bool PeerLinks::hears_soon() {
  const Deadline end = Clock::now() + kSoon;
  for (;;) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (has_heard_ || has_told_) return true;
      if (has_left_ || Clock::now() > end) return false;
    }
    std::this_thread::sleep_for(Milliseconds(1));
  }
}

std::vector<std::pair<int, std::string>> PeerLinks::left() const {
  std::vector<std::pair<int, std::string>> found;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Link& link : links_) {
    if (link.left) found.emplace_back(link.peer.rank, link.how);
  }
  return found;
}

std::optional<std::pair<int, std::string>> PeerLinks::gone(int peer) const {
  std::optional<std::pair<int, std::string>> first;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Link& link : links_) {
    if (peer >= 0 && link.peer.rank != peer) continue;
    if (!link.gone) return std::nullopt;
    if (!first) first.emplace(link.peer.rank, link.how);
  }
  return first;
}

std::vector<std::string> PeerLinks::missing() const {
  std::vector<std::string> found;
  for (const Link& link : links_) {
    if (link.peer.fd.get() < 0) found.push_back(describe(link.peer.rank));
  }
  return found;
}

std::string PeerLinks::describe(int rank) const {
  for (const Link& link : links_) {
    if (link.peer.rank == rank) return concat("rank ", rank, " (", link.peer.place, ")");
  }
  return concat("rank ", rank);
}

void PeerLinks::leave_all(const std::string& how) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  for (PeerLinks* each : registry().all) each->leave(how);
}

void PeerLinks::run() {
  name_thread("fc-peer-links");
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_) {
    std::vector<pollfd> all{{wake_.get(), POLLIN, 0}};
    std::vector<Link*> listening;
    for (Link& link : links_) {
      if (!link.open) continue;
      all.push_back({link.peer.fd.get(), POLLIN, 0});
      listening.push_back(&link);
    }
    int pause_ms = -1;
    Deadline next = verdict_at_;
    for (const Link& link : links_) next = std::min(next, link.departed_at);
    if (next != Deadline::max()) {
      const auto left = std::chrono::ceil<Milliseconds>(next - Clock::now());
      pause_ms = static_cast<int>(std::max<int64_t>(left.count(), 0));
    }
    lock.unlock();
    poll(all.data(), all.size(), pause_ms);
    lock.lock();
    for (size_t i = 0; i < listening.size(); ++i) {
      if (all[i + 1].revents != 0) read(*listening[i]);
    }
    if (has_heard_ || has_left_) {
      verdict_at_ = Deadline::max();
    } else if (told_) {
      const Notice first = *told_;
      // Seen here, too: then in this rank's own words.
      const auto among = [&](const std::vector<int>& ranks) {
        return std::count(ranks.begin(), ranks.end(), first.blamed) != 0;
      };
      const bool seen = first.code == ErrorCode::kPeerLost && (among(dead_) || among(silent_));
      hear(seen ? verdict() : first, lock);
    } else if (Clock::now() >= verdict_at_) {
      hear(verdict(), lock);
    }
    for (Link& link : links_) {
      if (Clock::now() >= link.departed_at) depart(link, lock);
    }
  }
}

void PeerLinks::depart(Link& link, std::unique_lock<std::mutex>& lock) {
  link.departed_at = Deadline::max();
  link.gone = true;
  if (has_heard_ || has_left_) return;
  const std::string how = link.how;
  const uint64_t issued = link.issued;
  lock.unlock();
  group_.departed(link.peer.rank, how, issued);
  lock.lock();
}

void PeerLinks::hear(const Notice& notice, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  group_.heard(notice);
  lock.lock();
  has_heard_ = true;  // after the group has noted it: hears_soon() returns to a known failure
}

void PeerLinks::read(Link& link) {
  char bytes[4 * sizeof(Frame)];
  for (;;) {
    const ssize_t got = recv(link.peer.fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return ended(link, got == 0 ? 0 : errno);
    link.received.append(bytes, static_cast<size_t>(got));
    while (link.received.size() >= sizeof(Frame)) {
      const Frame frame(link.received.data());
      link.received.erase(0, sizeof(Frame));
      take(link, frame);
    }
  }
}

void PeerLinks::take(Link& link, const Frame& frame) {
  switch (static_cast<Kind>(frame.kind)) {
    case Kind::kReady:
      link.ready = true;
      break;
    case Kind::kLeft:
      link.left = true;
      link.how = frame.text;
      link.issued = frame.count;
      break;
    case Kind::kNotice:
      if (!told_) {
        told_ = {code_in(frame.code), frame.blamed, frame.teller, frame.text, frame.count};
      }
      break;
    case Kind::kQuestion: {
      Frame answer(Kind::kAnswer, "");
      answer.count = group_.issued();
      send_to(link, answer);
      break;
    }
    case Kind::kAnswer:
      ++link.answers;
      link.issued = frame.count;
      break;
  }
}

void PeerLinks::ended(Link& link, int error) {
  link.open = false;
  // Without its word of readiness it may have given this link up while it formed, and be well.
  if (link.left) link.departed_at = Clock::now() + kSoon;
  if (link.left || (!link.ready && !FC_LEFT_OUT(Control::kNotReady))) return;
  const bool cut = error != 0 && error != ECONNRESET && error != EPIPE;
  (cut ? silent_ : dead_).push_back(link.peer.rank);
  verdict_at_ = std::min(verdict_at_, Clock::now() + (cut ? kGatherSilent : kGather));
}

Notice PeerLinks::verdict() const {
  const bool died = !dead_.empty();
  std::vector<int> ranks = died ? dead_ : silent_;
  std::sort(ranks.begin(), ranks.end());
  const std::string who = ranks.size() == 1 ? describe(ranks[0]) : ranks_of(ranks);
  const std::string what =
      died ? " died. Look at its own output for the cause"
           : concat(" did not answer for ", silence_.count() / 1000.0,
                    " s: the network between its host and this one is cut, or that host is down");
  return {ErrorCode::kPeerLost, ranks[0], rank_,
          who + what + "; this process group cannot be used any more"};
}

}  // namespace fastcomm
