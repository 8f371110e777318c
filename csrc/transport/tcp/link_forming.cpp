#include "transport/tcp/link_forming.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <map>
#include <sstream>

#include "core/error.h"
#include "transport/tcp/link_sockets.h"

namespace fastcomm {
namespace {

constexpr int kMostLinkedWithAll = 64;
constexpr uint64_t kMagic = 0x6b6e696c6d6d6366;  // "fcmmlink"

/// What a rank publishes: a number that no other listener has, where it runs and is reached.
struct Card {
  uint64_t token = 0;
  uint16_t port = 0;
  std::string place;
  std::vector<std::string> addresses;
};

/// Under which a rank publishes its card; named in messages.
std::string key_of(int rank) { return concat("rank ", rank); }

std::string own_place() {
  char name[HOST_NAME_MAX + 1] = {};
  static_cast<void>(gethostname(name, sizeof(name) - 1));
  return concat("pid ", getpid(), " on ", name[0] == '\0' ? "its host" : name);
}

/// The place, which has spaces, on a line of its own.
std::string text_of(const Card& card) {
  std::ostringstream text;
  text << card.token << ' ' << card.port;
  for (const std::string& address : card.addresses) text << ' ' << address;
  text << '\n' << card.place;
  return text.str();
}

Card card_in(const std::string& text) {
  std::istringstream words(text.substr(0, text.find('\n')));
  Card card;
  if (!(words >> card.token >> card.port)) {
    throw Error(ErrorCode::kSystem, "the store holds no addresses, but '" + text + "'");
  }
  for (std::string address; words >> address;) card.addresses.push_back(address);
  if (text.find('\n') != std::string::npos) card.place = text.substr(text.find('\n') + 1);
  return card;
}

/// Sent by the one who connects; sent back by the one who accepts, which shows that it is the right
/// one; sent again, which chooses this connection among several to the same rank. Ranks are of one
/// byte order.
struct Hello {
  uint64_t magic;
  uint64_t token;  // of the one who accepts
  int64_t rank;    // of the one who connects
};

/// A connection whose ends are not known to each other yet.
struct Attempt {
  Fd fd;
  int peer = -1;       // -1: not said yet
  int steps = 0;       // hellos received
  size_t got = 0;      // bytes of the next one
  Hello hello{};       // the last one received
  bool said = false;   // the first hello is sent
  bool ended = false;  // to be dropped
};

bool send_hello(Attempt& attempt, const Hello& hello) {
  const ssize_t sent = send(attempt.fd.get(), &hello, sizeof(hello), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent == sizeof(hello);  // in an empty buffer
}

/// True when another hello is there as a whole.
bool receive_hello(Attempt& attempt) {
  char* const to = reinterpret_cast<char*>(&attempt.hello) + attempt.got;
  const ssize_t got = recv(attempt.fd.get(), to, sizeof(Hello) - attempt.got, MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) attempt.ended = true;
  if (got <= 0) return false;
  attempt.got += static_cast<size_t>(got);
  if (attempt.got < sizeof(Hello)) return false;
  attempt.got = 0;
  ++attempt.steps;
  return true;
}

/// All attempts of a rank, until each peer is linked.
class Linking {
 public:
  Linking(int rank, const LinkListener& listener, const Card& own, std::vector<LinkedPeer>& peers)
      : rank_(rank), listener_(listener), own_(own), peers_(peers) {}

  void connect(int peer, const Card& card) {
    cards_.emplace(peer, card);
    if (peer > rank_) return;  // it comes
    for (const std::string& address : card.addresses) {
      Attempt attempt{connect_link(address, card.port)};
      attempt.peer = peer;
      if (attempt.fd.get() >= 0) connecting_.push_back(std::move(attempt));
    }
  }

  bool is_done() const {
    return std::all_of(peers_.begin(), peers_.end(),
                       [](const LinkedPeer& each) { return each.fd.get() >= 0; });
  }

  /// Waits for a moment for something to do.
  void step() {
    constexpr int kPauseMs = 20;
    std::vector<pollfd> all{{listener_.fd.get(), POLLIN, 0}};
    for (const Attempt& each : accepted_) all.push_back({each.fd.get(), POLLIN, 0});
    for (const Attempt& each : connecting_) {
      const auto events = static_cast<int16_t>(each.said ? POLLIN : POLLOUT);
      all.push_back({each.fd.get(), events, 0});
    }
    poll(all.data(), all.size(), kPauseMs);
    const pollfd* state = all.data() + 1;
    for (Attempt& each : accepted_) {
      if ((state++)->revents != 0) go_on_accepting(each);
    }
    for (Attempt& each : connecting_) {
      if ((state++)->revents != 0) go_on_connecting(each);
    }
    for (auto* attempts : {&accepted_, &connecting_}) {
      const auto ended = [&](const Attempt& each) { return each.ended || each.fd.get() < 0; };
      attempts->erase(std::remove_if(attempts->begin(), attempts->end(), ended), attempts->end());
    }
    if (all[0].revents == 0) return;
    for (;;) {
      Attempt attempt{accept_link(listener_)};
      if (attempt.fd.get() < 0) return;
      accepted_.push_back(std::move(attempt));
    }
  }

 private:
  LinkedPeer* peer_of(int64_t rank) {
    for (LinkedPeer& each : peers_) {
      if (each.rank == rank) return &each;
    }
    return nullptr;
  }

  void go_on_accepting(Attempt& attempt) {
    if (!receive_hello(attempt)) return;
    const Hello& hello = attempt.hello;
    LinkedPeer* const peer = peer_of(hello.rank);
    const bool mine = hello.magic == kMagic && hello.token == own_.token && hello.rank > rank_;
    attempt.ended = !mine || peer == nullptr || peer->fd.get() >= 0;  // a stranger, or late
    if (attempt.ended) return;
    if (attempt.steps == 2) {
      peer->fd = std::move(attempt.fd);
    } else if (!send_hello(attempt, hello)) {
      attempt.ended = true;
    }
  }

  void go_on_connecting(Attempt& attempt) {
    LinkedPeer& peer = *peer_of(attempt.peer);
    const Hello hello{kMagic, cards_.at(attempt.peer).token, rank_};
    attempt.ended = peer.fd.get() >= 0;  // over another address
    if (attempt.ended) return;
    if (!attempt.said) {
      int error = 0;
      socklen_t size = sizeof(error);
      getsockopt(attempt.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      attempt.said = error == 0 && send_hello(attempt, hello);
      attempt.ended = !attempt.said;
    } else if (receive_hello(attempt)) {
      const bool right = attempt.hello.magic == kMagic && attempt.hello.token == hello.token;
      attempt.ended = !right || !send_hello(attempt, hello);
      if (!attempt.ended) peer.fd = std::move(attempt.fd);
    }
  }

  const int rank_;
  const LinkListener& listener_;
  const Card& own_;
  std::vector<LinkedPeer>& peers_;
  std::map<int, Card> cards_;
  std::vector<Attempt> connecting_, accepted_;
};

}  // namespace

std::vector<int> linked_ranks(int rank, int size) {
  std::vector<int> ranks;
  for (int distance = 1; distance < size;
       distance = size <= kMostLinkedWithAll ? distance + 1 : distance * 2) {
    ranks.push_back((rank + distance) % size);
    ranks.push_back((rank - distance + size) % size);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::vector<LinkedPeer> connect_links(Bootstrap& store, int rank, int size, Deadline deadline,
                                      Milliseconds patience) {
  LinkListener listener;
  std::vector<std::string> addresses;
  const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");
  const std::string named = interface == nullptr ? "" : interface;
  try {
    listener = listen_for_links();
    addresses = own_addresses(named.substr(0, named.find(',')));
  } catch (const Error&) {  // without links, which the others learn from the card
  }
  const Card own{random_bits(), listener.port, own_place(), addresses};
  store.set(key_of(rank), text_of(own));
  std::vector<LinkedPeer> peers;
  for (const int peer : linked_ranks(rank, size)) peers.push_back({peer, "", Fd()});
  Linking linking(rank, listener, own, peers);
  for (LinkedPeer& peer : peers) {
    const Card card = card_in(store.get(key_of(peer.rank), deadline));
    peer.place = card.place;
    linking.connect(peer.rank, card);
  }
  const Deadline end = std::min(deadline, deadline_after(patience));
  while (!linking.is_done() && Clock::now() < end) linking.step();
  return peers;
}

}  // namespace fastcomm
