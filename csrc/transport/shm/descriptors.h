// File descriptors passed between processes over Unix sockets in the abstract namespace: nothing in
// the file system, nothing to unlink. A socket's name is no secret, so both ends ask the kernel
// whether the other runs as the same user, and messages carry a number that only the group knows.
//
// Nothing here waits for a peer except accept_one(). A peer is expected to connect and send only
// after it has said elsewhere that it did, since its message then lies in the socket. So each
// stranger costs only some microseconds, however many there are.
#pragma once

#include <cstddef>
#include <string>

#include "core/clock.h"
#include "core/error.h"
#include "transport/shm/segment.h"

namespace fastcomm {

/// A listening socket with a random name.
class Listener {
 public:
  Listener();
  const std::string& name() const { return name_; }
  int fd() const { return fd_.get(); }

 private:
  std::string name_;
  Fd fd_;
};

constexpr int kMostDescriptors = 3;  // of one message

/// A received message and its descriptors.
struct Parcel {
  bool whole = false;  // as many bytes and descriptors as wanted, and no more
  int count = 0;       // of the descriptors
  bool lost = false;   // this process may open no more files
  Fd files[kMostDescriptors];
};

/// Sends `bytes` and `count` descriptors as one message, without waiting. Raises Error(kSystem).
void send_parcel(int socket, const void* bytes, size_t size, const int* files, int count);
/// Reads the message in the socket, with `least` to `most` descriptors; never waits. Anything
/// beyond the wanted size is closed. Raises Error(kSystem).
Parcel receive_parcel(int socket, void* bytes, size_t size, int least, int most);

/// Raises Error(kSystem) unless a process of this user is at the other end of a connected socket,
/// as the kernel recorded it at connect() or listen().
void check_user(int socket);

/// Connects to a listener of this user. Raises Error(kSystem) if the name does not exist: another
/// host, or another network namespace.
Fd connect_to(const std::string& name);

/// True if there is something to read before `deadline`; looks at least once. Raises
/// Error(kSystem).
bool wait_readable(int fd, Deadline deadline);

/// The next connection, by `deadline`, which repeated strangers do not move. Raises
/// Error(kTimeout).
Fd accept_next(const Listener& listener, bool first, Deadline deadline);

/// Returns `take(socket)` for the first connection for which it raises no Error; others are
/// dropped. Raises Error(kTimeout) at `deadline`.
template <class Take>
auto accept_one(const Listener& listener, Deadline deadline, const Take& take) {
  for (bool first = true;; first = false) {
    const Fd socket = accept_next(listener, first, deadline);
    try {
      return take(socket.get());
    } catch (const Error&) {
      continue;  // not of the group; a real peer that failed here reports it at its own end
    }
  }
}

}  // namespace fastcomm
