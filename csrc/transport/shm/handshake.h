// Handshake of two processes that hand each other their shared memory: one exchange over a Unix
// socket.
//
// Each side sends a Hello with descriptors: its segment, a pidfd of itself, and its records, if it
// has any (transport/shm/descriptors.h, core/records.h). The connection is closed afterwards. The
// pidfd reports death, since the end of file of a socket does not come while a forked child holds
// the socket.
#pragma once

#include <cstdint>
#include <string>

#include "core/clock.h"
#include "transport/shm/descriptors.h"
#include "transport/shm/segment.h"

namespace fastcomm {

constexpr uint32_t kProtocolVersion = 5;

/// A random name of a process, so that a reused process id is not taken for an old peer.
struct EndpointId {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const EndpointId& other) const { return high == other.high && low == other.low; }
  bool operator<(const EndpointId& other) const {
    return high != other.high ? high < other.high : low < other.low;
  }
};

struct Hello {
  uint64_t magic;
  uint32_t version;
  int32_t pid;  // as the sender sees it; for messages only
  EndpointId id;
  uint64_t descriptors;  // that come with it
  uint64_t nonce;        // of the group that is being formed
  uint64_t segment_bytes;
};

/// The descriptors that go with it.
struct OwnFiles {
  int segment, pidfd;
  int records = -1;  // -1: there are none
};

/// The other side's Hello, and its descriptors.
struct Introduction {
  Hello hello{};
  Fd segment;
  Fd pidfd;
  Fd records;  // none, or kept for those who ask about a rank that has ended
};

/// Reads a message that has arrived in a connected socket; never waits. Raises Error(kSystem) for
/// anything but a valid Hello of the group with its descriptors, and then leaves none open.
Introduction receive_introduction(int socket, uint64_t nonce);

/// Checks the user at the other end of a connected socket, receives and answers; never waits.
/// Raises like receive_introduction.
Introduction answer_introduction(int socket, const Hello& own, const OwnFiles& files);

/// Connects to a listener, and sends this rank's introduction without waiting for an answer. Raises
/// Error(kSystem) if the name does not exist: another host, or another network namespace.
Fd introduce(const std::string& name, const Hello& own, const OwnFiles& files);

/// Accepts the next connection of a peer of this user that sent a valid Hello of the group
/// (accept_one), and sends this rank's introduction back. Raises Error(kTimeout) at `deadline`.
Introduction accept_introduction(const Listener& listener, const Hello& own, const OwnFiles& files,
                                 Deadline deadline);

/// The answer on a socket that introduce() returned. Raises Error(kTimeout) at `deadline`, and like
/// receive_introduction.
Introduction await_answer(const Fd& socket, uint64_t nonce, Deadline deadline);

}  // namespace fastcomm
