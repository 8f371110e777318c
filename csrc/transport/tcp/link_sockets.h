// The sockets under links between ranks of several hosts (transport/tcp/peer_links.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/clock.h"
#include "transport/fd.h"

namespace fastcomm {

/// A socket that listens at all addresses of this host. Does not block.
struct LinkListener {
  Fd fd;
  uint16_t port = 0;
};

/// Raises Error(kSystem).
LinkListener listen_for_links();

/// The next connection; an empty one if there is none. Does not block.
Fd accept_link(const LinkListener& listener);

/// Addresses of this host as numbers, in the order in which a peer should try them: those of the
/// interface `first`, which may be "", then the others; loopback last. At most 16.
std::vector<std::string> own_addresses(const std::string& first);

/// Begins to connect; an empty one if that fails at once. Does not block.
Fd connect_link(const std::string& address, uint16_t port);

/// Lets the kernel end a connection if the peer's kernel does not answer for `silence`; zero: never
/// because of that. The kernel of a process that is stopped answers, too.
void end_when_silent(int fd, Milliseconds silence);

}  // namespace fastcomm
