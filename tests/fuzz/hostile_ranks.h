// A store behind which all other ranks of a group are played by the input: each of their values is
// what an honest rank would write there, then tampered with; and they connect and answer at the
// moments at which honest ranks would.
#pragma once

#include <map>
#include <memory>
#include <stdexcept>

#include "descriptors.h"
#include "raw_socket.h"
#include "transport/bootstrap.h"
#include "transport/shm/forming.h"
#include "transport/shm/room.h"
#include "transport/shm/shm_transport.h"

namespace fastcomm::testing {

/// What a peer sends first; `valid` as long as nothing was changed.
struct Message {
  std::string bytes;
  std::vector<int> fds;
  bool valid;
};

inline Message introduction_of(Endpoint& peer, const Descriptors& files, uint64_t nonce,
                               Input& input) {
  const Hello hello = honest_hello(peer, nonce);
  Message message{{reinterpret_cast<const char*>(&hello), sizeof(hello)}, {}, true};
  message.valid = !input.tamper(message.bytes);
  message.fds = files.choose(input);
  message.valid &= files.proper(message.fds);
  return message;
}

/// Another rank, in this process: it has an endpoint of its own.
struct Actor {
  Endpoint endpoint{"memfd"};
  Descriptors files{endpoint};
  uint64_t window = 0;
  std::unique_ptr<Listener> listener;
  Fd socket;  // to the rank under test, once it has connected
};

class HostileStore final : public Bootstrap {
 public:
  HostileStore(int rank, int size, std::vector<std::unique_ptr<Actor>>& actors,
               const GroupConfig& config, Input& input)
      : rank_(rank), size_(size), actors_(actors), config_(config), input_(input) {}

  /// Whether every rank behaved as an honest one.
  bool honest() const { return honest_; }

  void set(const std::string& key, const std::string& value) override {
    if (key.rfind("welcome/", 0) == 0) nonce_ = value.substr(0, 16);
    if (key.rfind("record/", 0) == 0) own_ = parse_record(value, rank_);
  }
  bool has(const std::string&) override { return true; }
  std::string get(const std::string& key, Deadline) override {
    std::string value = honest_value(key);
    if (input_.tamper(value)) honest_ = false;
    return value;
  }

 private:
  std::string honest_value(const std::string& key) {
    const std::string round = key.substr(0, key.find('/'));
    const int peer = key.back() - '0';
    if (round == "hello") return "0123456789abcdef";
    if (round == "ack") return std::to_string(size_);
    if (round == "welcome") {
      nonce_ = hex(0x1234567890abcdef);
      return nonce_ + "/" + std::to_string(size_);
    }
    if (round == "agreed") return "+" + to_bytes(config_);
    if (round == "record") return record(peer);
    if (round == "known") return mask(peer, false);
    if (round == "reached") {
      connect_or_answer(peer);
      return mask(peer, true);
    }
    return "ok";
  }

  uint64_t nonce() const { return std::stoull(nonce_, nullptr, 16); }

  std::string record(int peer) {
    Actor& actor = *actors_[peer];
    Record record{};
    record.id = actor.endpoint.id();
    record.pid = getpid();
    record.version = kProtocolVersion;
    record.window = actor.window;
    record.room = kNoLimit;
    std::strncpy(record.listener, actor.listener->name().c_str(), sizeof(record.listener) - 1);
    auto* header =
        reinterpret_cast<WindowHeader*>(actor.endpoint.segment().mapping().at(actor.window));
    header->nonce.store(nonce());
    header->control.left.store(1);  // so that the rank under test may use its own window again
    return to_bytes(record);
  }

  std::string mask(int peer, bool of_connections) const {
    std::string text(size_, '0');
    for (int other = 0; other < size_; ++other) {
      text[other] = of_connections ? (other < peer ? '1' : '0') : (other == peer ? '1' : '0');
    }
    return text;
  }

  /// A higher rank connects and sends; a lower one answers who has connected.
  void connect_or_answer(int peer) {
    Actor& actor = *actors_[peer];
    const Message message = introduction_of(actor.endpoint, actor.files, nonce(), input_);
    honest_ &= message.valid;
    if (peer > rank_) {
      actor.socket = raw_connect(own_.listener);
    } else {
      actor.socket = Fd(accept4(actor.listener->fd(), nullptr, nullptr, SOCK_CLOEXEC));
      if (actor.socket.get() < 0) return;  // a false name was in the record
    }
    raw_send(actor.socket.get(), message.bytes.data(), message.bytes.size(), message.fds);
    if (!message.valid) actor.socket = Fd();  // or it would be waited for
  }

  int rank_;
  int size_;
  std::vector<std::unique_ptr<Actor>>& actors_;
  GroupConfig config_;
  Input& input_;
  bool honest_ = true;
  std::string nonce_ = "0000000000000000";
  Record own_{};
};

}  // namespace fastcomm::testing
