#include "transport/shm/descriptors.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>

#include "core/control.h"
#include "transport/bootstrap.h"

namespace fastcomm {
namespace {

constexpr size_t kControlBytes = CMSG_SPACE(kMostDescriptors * sizeof(int));

/// The address of an abstract socket: a leading zero byte and a length, no terminator.
socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  FC_CHECK(!name.empty() && name.size() < sizeof(address.sun_path), "bad socket name");
  std::memset(&address, 0, sizeof(address));
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Fd new_socket() {
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  FC_SYSCALL(fd.get() >= 0, "socket(AF_UNIX)");
  return fd;
}

}  // namespace

Listener::Listener() : name_("fastcomm-" + hex(random_bits()) + hex(random_bits())) {
  fd_ = new_socket();
  sockaddr_un address;
  const socklen_t length = abstract_address(name_, address);
  FC_SYSCALL(bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0, "bind");
  // Room for strangers too: nobody accepts before the peers have come. The kernel has its own
  // limit.
  FC_SYSCALL(listen(fd_.get(), 4096) == 0, "listen");
}

void send_parcel(int socket, const void* bytes, size_t size, const int* files, int count) {
  iovec part{const_cast<void*>(bytes), size};
  alignas(cmsghdr) char control[kControlBytes] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof(int));
  std::memcpy(CMSG_DATA(header), files, count * sizeof(int));
  const ssize_t sent = TEMP_FAILURE_RETRY(sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
  FC_SYSCALL(sent == static_cast<ssize_t>(size), "sendmsg of a handshake");
}

Parcel receive_parcel(int socket, void* bytes, size_t size, int least, int most) {
  Parcel result;
  iovec part{bytes, size};
  alignas(cmsghdr) char control[kControlBytes] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received = TEMP_FAILURE_RETRY(recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT));
  FC_SYSCALL(received >= 0, "recvmsg of a handshake");
  // Every descriptor is taken first, so that none leaks if the rest is invalid.
  int& came = result.count;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t held = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < held; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      Fd owned(fd);
      if (came < most) result.files[came] = std::move(owned);
      ++came;
    }
  }
  if (FC_LEFT_OUT(Control::kForgetHelloLength)) received = static_cast<ssize_t>(size);
  result.whole = received == static_cast<ssize_t>(size) && came >= least && came <= most &&
                 (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) == 0;
  result.lost = (message.msg_flags & MSG_CTRUNC) != 0 && came < most;
  return result;
}

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

Fd connect_to(const std::string& name) {
  Fd fd = new_socket();
  // connect() waits while the listener's queue is full, which thousands of strangers can cause.
  const timeval bound{10, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof(bound));
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  const int result =
      TEMP_FAILURE_RETRY(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length));
  FC_SYSCALL(result == 0, "connect to the peer's socket");
  check_user(fd.get());
  return fd;
}

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

Fd accept_next(const Listener& listener, bool first, Deadline deadline) {
  for (;; first = false) {
    if ((!first && Clock::now() > deadline) || !wait_readable(listener.fd(), deadline)) {
      throw Error(ErrorCode::kTimeout, "no peer came to the handshake in time");
    }
    Fd socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.get() >= 0) return socket;
    FC_SYSCALL(errno == EINTR || errno == EAGAIN || errno == ECONNABORTED, "accept");
  }
}

}  // namespace fastcomm
