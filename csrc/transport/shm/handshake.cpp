#include "transport/shm/handshake.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "core/control.h"
#include "core/error.h"
#include "transport/bootstrap.h"

namespace fastcomm {
namespace {

constexpr uint64_t kHelloMagic = 0x6f6c6c65686d6366;  // "fcmhello"

/// The address of an abstract socket: a leading zero byte and a length, no terminator.
socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  FC_CHECK(!name.empty() && name.size() < sizeof(address.sun_path), "bad socket name");
  std::memset(&address, 0, sizeof(address));
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

/// Checks the user of the other end as the kernel recorded it at connect() or listen().
void check_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  FC_SYSCALL(getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0, "SO_PEERCRED");
  if (peer.uid != geteuid()) {
    throw Error(ErrorCode::kSystem, concat("a process of user ", peer.uid,
                                           " is at the socket of a "
                                           "group of user ",
                                           geteuid()));
  }
}

/// Whether there is something to read before `deadline`; looks at least once.
bool wait_readable(int fd, Deadline deadline) {
  for (;;) {
    const int64_t left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{fd, POLLIN, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
    if (ready > 0) return true;
    FC_SYSCALL(ready == 0 || errno == EINTR, "poll");
    if (left <= 0) return false;
  }
}

constexpr size_t kControlBytes = CMSG_SPACE(2 * sizeof(int));

void send_introduction(int socket, const Hello& own, int segment, int pidfd) {
  Hello hello = own;
  hello.magic = kHelloMagic;
  hello.version = kProtocolVersion;
  iovec part{&hello, sizeof(hello)};
  alignas(cmsghdr) char control[kControlBytes] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(2 * sizeof(int));
  const int fds[2] = {segment, pidfd};
  std::memcpy(CMSG_DATA(header), fds, sizeof(fds));
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  FC_SYSCALL(sent == static_cast<ssize_t>(sizeof(hello)), "sendmsg of a handshake");
}

Fd new_socket() {
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  FC_SYSCALL(fd.get() >= 0, "socket(AF_UNIX)");
  return fd;
}

}  // namespace

Introduction receive_introduction(int socket, uint64_t nonce) {
  Introduction result;
  iovec part{&result.hello, sizeof(result.hello)};
  alignas(cmsghdr) char control[kControlBytes] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received;
  do {
    received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (received < 0 && errno == EINTR);
  FC_SYSCALL(received >= 0, "recvmsg of a handshake");
  // Take every descriptor first, so that none leaks whatever is wrong with the rest.
  Fd fds[2];
  int count = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t held = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < held; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      Fd owned(fd);
      if (count < 2) fds[count++] = std::move(owned);
    }
  }
  const Hello& hello = result.hello;
  if (FC_LEFT_OUT(Control::kForgetHelloLength)) received = sizeof(Hello);
  const bool whole = received == static_cast<ssize_t>(sizeof(Hello)) && count == 2 &&
                     (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) == 0;
  if ((message.msg_flags & MSG_CTRUNC) != 0 && count < 2) {
    throw Error(ErrorCode::kSystem,
                "the descriptors of a handshake did not arrive: raise the limit of open files "
                "(ulimit -n)");
  }
  if (!whole || hello.magic != kHelloMagic) {
    throw Error(ErrorCode::kSystem, "a handshake was truncated or is not of fastcomm");
  }
  if (hello.version != kProtocolVersion) {
    throw Error(ErrorCode::kSystem,
                concat("a peer speaks version ", hello.version, " of the handshake, this process ",
                       kProtocolVersion, ": install the same fastcomm for every rank"));
  }
  if (hello.nonce != nonce) throw Error(ErrorCode::kSystem, "a handshake is of another group");
  result.segment = std::move(fds[0]);
  result.pidfd = std::move(fds[1]);
  return result;
}

Introduction answer_introduction(int socket, const Hello& own, int segment, int pidfd) {
  check_user(socket);
  Introduction peer = receive_introduction(socket, own.nonce);
  send_introduction(socket, own, segment, pidfd);
  return peer;
}

Listener::Listener() : name_("fastcomm-" + hex(random_bits()) + hex(random_bits())) {
  fd_ = new_socket();
  sockaddr_un address;
  const socklen_t length = abstract_address(name_, address);
  FC_SYSCALL(bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0, "bind");
  // Room for strangers too: nobody accepts before the peers have come. The kernel has its own limit.
  FC_SYSCALL(listen(fd_.get(), 4096) == 0, "listen");
}

Fd introduce(const std::string& name, const Hello& own, int segment, int pidfd) {
  Fd fd = new_socket();
  // connect() waits while the listener's queue is full, which thousands of strangers can bring about.
  const timeval bound{10, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof(bound));
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  int result;
  do {
    result = connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length);
  } while (result != 0 && errno == EINTR);
  FC_SYSCALL(result == 0, "connect to the peer's socket");
  check_user(fd.get());
  send_introduction(fd.get(), own, segment, pidfd);
  return fd;
}

Introduction accept_introduction(const Listener& listener, const Hello& own, int segment, int pidfd,
                                 Deadline deadline) {
  // Strangers that come again and again do not move the deadline.
  for (bool first = true;; first = false) {
    if ((!first && Clock::now() > deadline) || !wait_readable(listener.fd(), deadline)) {
      throw Error(ErrorCode::kTimeout, "no peer came to the handshake in time");
    }
    Fd socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.get() < 0) {
      FC_SYSCALL(errno == EINTR || errno == EAGAIN || errno == ECONNABORTED, "accept");
      continue;
    }
    try {
      return answer_introduction(socket.get(), own, segment, pidfd);
    } catch (const Error&) {
      continue;  // not a peer of this group; a real one that failed here shows at its own end
    }
  }
}

Introduction await_answer(const Fd& socket, uint64_t nonce, Deadline deadline) {
  if (!wait_readable(socket.get(), deadline)) {
    throw Error(ErrorCode::kTimeout, "a peer did not answer the handshake in time");
  }
  return receive_introduction(socket.get(), nonce);
}

}  // namespace fastcomm
