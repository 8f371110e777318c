// The first message of an honest peer, and the descriptors that a hostile one may send: a proper
// segment and pidfd, or others in their place.
#pragma once

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "input.h"
#include "transport/shm/endpoint.h"

namespace fastcomm::testing {

// The constant of csrc/transport/shm/handshake.cpp, which no header has.
constexpr uint64_t kHelloMagic = 0x6f6c6c65686d6366;

/// The first message of an honest peer.
inline Hello honest_hello(Endpoint& peer, uint64_t nonce) {
  Hello hello = peer.hello(nonce);
  hello.magic = kHelloMagic;
  hello.version = kProtocolVersion;
  hello.descriptors = 2;
  return hello;
}

/// A memfd with these seals and `content` at its start.
inline Fd hostile_file(uint64_t bytes, int seals, const std::string& content = "") {
  Fd fd(memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return fd;
  if (!content.empty() && pwrite(fd.get(), content.data(), content.size(), 0) < 0) return fd;
  if (seals != 0) fcntl(fd.get(), F_ADD_SEALS, seals);
  return fd;
}

class Descriptors {
 public:
  explicit Descriptors(Endpoint& peer) : segment_(peer.segment().fd()), pidfd_(peer.files().pidfd) {
    const uint64_t bytes = peer.segment().mapping().bytes();
    constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW;
    add(hostile_file(4096, kSealed));                // too small
    add(hostile_file(bytes, 0));                     // not sealed
    add(hostile_file(bytes, kSealed));               // no header
    add(hostile_file(0, kSealed));                   // empty
    add(Fd(open("/", O_RDONLY | O_CLOEXEC)));        // a directory
    add(Fd(open("/dev/null", O_RDWR | O_CLOEXEC)));  // always readable
    add(Fd(eventfd(0, EFD_CLOEXEC)));                // never readable
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) == 0) add(Fd(ends[0])), add(Fd(ends[1]));
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0) {
      add(Fd(ends[0])), add(Fd(ends[1]));
    }
    // The proper segment, read-only.
    add(Fd(open(("/proc/self/fd/" + std::to_string(segment_)).c_str(), O_RDONLY | O_CLOEXEC)));
    Fd huge(memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
    if (huge.get() >= 0 && ftruncate(huge.get(), static_cast<off_t>(bytes)) == 0) {
      fcntl(huge.get(), F_ADD_SEALS, kSealed);
      add(std::move(huge));
    }
  }

  /// The proper pair, unless the input wants others.
  std::vector<int> choose(Input& input) const {
    const int how = input.byte();
    if (how % 4 == 0) return {segment_, pidfd_};
    if (how % 64 == 1) return std::vector<int>(30, one(input));
    std::vector<int> chosen;
    for (int count = (how / 4) % 4; count > 0; --count) chosen.push_back(one(input));
    return chosen;
  }
  /// True if these are the proper pair.
  bool proper(const std::vector<int>& chosen) const {
    return chosen == std::vector<int>{segment_, pidfd_};
  }

 private:
  int one(Input& input) const {
    const size_t index = input.byte() % (files_.size() + 2);
    return index == 0 ? segment_ : index == 1 ? pidfd_ : files_[index - 2].get();
  }
  void add(Fd fd) {
    if (fd.get() >= 0) files_.push_back(std::move(fd));
  }
  int segment_;
  int pidfd_;
  std::vector<Fd> files_;
};

}  // namespace fastcomm::testing
