#include "transport/shm/endpoint.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "core/env.h"
#include "core/error.h"
#include "core/records.h"
#include "transport/bootstrap.h"
#include "transport/fork.h"
#include "transport/shm/room.h"

namespace fastcomm {
namespace {

Fd open_own_pidfd() {
#if defined(SYS_pidfd_open)
  Fd fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  FC_SYSCALL(fd.get() >= 0, "pidfd_open");
  return fd;
#else
  throw Error(ErrorCode::kSystem, "this system has no pidfd_open (Linux 5.3)");
#endif
}

/// Raises unless the descriptor reports the end of a process. The watch would take a file that is
/// always readable for a death, and wait for ever on one that never is.
void check_pidfd(const Fd& fd) {
  constexpr auto kByPidfd = static_cast<idtype_t>(3);  // P_PIDFD, which older headers lack
  siginfo_t info{};
  // Accepts: not a child of this process (ECHILD); a running child; an ended child, left unreaped.
  const int found =
      waitid(kByPidfd, static_cast<id_t>(fd.get()), &info, WEXITED | WNOHANG | WNOWAIT);
  if (found != 0 && errno == EBADF) {
    throw Error(ErrorCode::kSystem, "a peer handed over a descriptor that is no pidfd");
  }
}

std::atomic<Endpoint*> g_instance{nullptr};

}  // namespace

Endpoint::Endpoint(const std::string& segment_kind)
    : id_{random_bits(), random_bits()},
      segment_(segment_kind, first_room(environment().segment_bytes), environment().segment_bytes),
      pidfd_(open_own_pidfd()),
      watch_(std::make_unique<DeathWatch>([this] { ring(doorbell()); })) {}

Endpoint& Endpoint::instance() {
  static Endpoint* endpoint = [] {
    watch_for_forks();
    return g_instance = new Endpoint(environment().transport);
  }();
  return *endpoint;
}

std::vector<std::shared_ptr<PeerProcess>> Endpoint::known_peers() {
  Endpoint* const endpoint = g_instance;
  std::vector<std::shared_ptr<PeerProcess>> known;
  if (endpoint == nullptr) return known;
  std::lock_guard<std::mutex> lock(endpoint->mutex_);
  for (const auto& [id, peer] : endpoint->peers_) {
    if (auto held = peer.lock()) known.push_back(std::move(held));
  }
  return known;
}

OwnFiles Endpoint::files() const {
  const Records* const records = Records::instance();
  return {segment_.fd(), pidfd_.get(), records == nullptr ? -1 : records->fd()};
}

Hello Endpoint::hello(uint64_t nonce) {
  Hello hello{};
  hello.pid = getpid();
  hello.id = id_;
  hello.nonce = nonce;
  hello.segment_bytes = segment_.settle(kNoLimit);
  return hello;
}

std::shared_ptr<PeerProcess> Endpoint::find(const EndpointId& id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = peers_.find(id);
  return it == peers_.end() ? nullptr : it->second.lock();
}

std::shared_ptr<PeerProcess> Endpoint::adopt(Introduction introduction) {
  check_pidfd(introduction.pidfd);
  auto peer = std::make_shared<PeerProcess>();
  peer->id = introduction.hello.id;
  peer->pid = introduction.hello.pid;
  peer->mapping =
      std::make_shared<Mapping>(introduction.segment.get(), introduction.hello.segment_bytes, true);
  peer->records = std::move(introduction.records);
  watch_->watch(std::move(introduction.pidfd), peer->dead);
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = peers_.begin(); it != peers_.end();) {
    it = it->second.expired() ? peers_.erase(it) : std::next(it);
  }
  peers_[peer->id] = peer;
  return peer;
}

void Endpoint::free_later(uint64_t offset, size_t bytes, std::function<bool()> unused) {
  watch_->prune();
  std::lock_guard<std::mutex> lock(mutex_);
  leftovers_.push_back({offset, bytes, std::move(unused)});
}

void Endpoint::quarantine(uint64_t offset, size_t bytes, std::function<bool()> unused) {
  std::lock_guard<std::mutex> lock(mutex_);
  quarantine_.push_back({offset, bytes, std::move(unused)});
}

bool Endpoint::in_quarantine(uint64_t offset, size_t bytes) {
  quarantine_.erase(std::remove_if(quarantine_.begin(), quarantine_.end(),
                                   [](const Leftover& range) { return range.unused(); }),
                    quarantine_.end());
  return std::any_of(quarantine_.begin(), quarantine_.end(), [&](const Leftover& range) {
    return range.offset < offset + bytes && offset < range.offset + range.bytes;
  });
}

void Endpoint::free(uint64_t offset, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (in_quarantine(offset, bytes)) {
    leftovers_.push_back({offset, bytes, [=, this] { return !in_quarantine(offset, bytes); }});
  } else {
    segment_.free(offset, bytes);
  }
}

uint64_t Endpoint::allocate(size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    leftovers_.erase(std::remove_if(leftovers_.begin(), leftovers_.end(),
                                    [this](const Leftover& leftover) {
                                      if (!leftover.unused()) return false;
                                      segment_.free(leftover.offset, leftover.bytes);
                                      return true;
                                    }),
                     leftovers_.end());
  }
  return segment_.allocate(bytes);
}

}  // namespace fastcomm
