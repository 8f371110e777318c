// The sockets of the handshake as a stranger uses them: any bytes, any descriptors.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>

#include "check.h"
#include "transport/shm/segment.h"

namespace fastcomm::testing {

inline sockaddr_un address_of(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

inline Fd raw_connect(const std::string& name) {
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  socklen_t length;
  const sockaddr_un address = address_of(name, length);
  EXPECT(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0);
  return fd;
}

inline void raw_send(int socket, const void* data, size_t bytes, const std::vector<int>& fds) {
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(32 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  EXPECT(sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
}

}  // namespace fastcomm::testing
