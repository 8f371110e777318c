#include "transport/tcp/link_sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

#include "core/error.h"

namespace fastcomm {
namespace {

constexpr size_t kMostAddresses = 16;

/// An address of either family.
union SocketAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

/// The number of a usable address, or "": those of one link alone need its name.
std::string numeric(const sockaddr& any) {
  SocketAddress address{};
  char text[INET6_ADDRSTRLEN] = {};
  if (any.sa_family == AF_INET) {
    std::memcpy(&address.v4, &any, sizeof(address.v4));
    inet_ntop(AF_INET, &address.v4.sin_addr, text, sizeof(text));
  } else if (any.sa_family == AF_INET6) {
    std::memcpy(&address.v6, &any, sizeof(address.v6));
    if (IN6_IS_ADDR_LINKLOCAL(&address.v6.sin6_addr)) return "";
    inet_ntop(AF_INET6, &address.v6.sin6_addr, text, sizeof(text));
  }
  return text;
}

Fd listening(const sockaddr& at, socklen_t size) {
  Fd fd(socket(at.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return fd;
  const int off = 0;
  if (at.sa_family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  const bool listens = bind(fd.get(), &at, size) == 0 && listen(fd.get(), SOMAXCONN) == 0;
  return listens ? std::move(fd) : Fd();
}

}  // namespace

LinkListener listen_for_links() {
  SocketAddress all{};
  all.v6.sin6_family = AF_INET6;
  LinkListener listener{listening(all.any, sizeof(all.v6))};
  if (listener.fd.get() < 0) {  // no IPv6 here
    all = {};
    all.v4.sin_family = AF_INET;
    listener.fd = listening(all.any, sizeof(all.v4));
  }
  FC_SYSCALL(listener.fd.get() >= 0, "a listening TCP socket");
  SocketAddress own{};
  socklen_t size = sizeof(own);
  FC_SYSCALL(getsockname(listener.fd.get(), &own.any, &size) == 0, "getsockname");
  listener.port = ntohs(own.any.sa_family == AF_INET ? own.v4.sin_port : own.v6.sin6_port);
  return listener;
}

Fd accept_link(const LinkListener& listener) {
  return Fd(accept4(listener.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

std::vector<std::string> own_addresses(const std::string& first) {
  ifaddrs* listed = nullptr;
  if (getifaddrs(&listed) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> held(listed, freeifaddrs);
  std::vector<std::pair<int, std::string>> found;
  for (const ifaddrs* each = listed; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const std::string address = numeric(*each->ifa_addr);
    if (address.empty()) continue;
    const bool loopback = (each->ifa_flags & IFF_LOOPBACK) != 0;
    found.emplace_back(each->ifa_name == first ? 0 : loopback ? 2 : 1, address);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& one, const auto& other) { return one.first < other.first; });
  std::vector<std::string> addresses;
  for (const auto& [order, address] : found) {
    if (addresses.size() < kMostAddresses) addresses.push_back(address);
  }
  return addresses;
}

Fd connect_link(const std::string& address, uint16_t port) {
  SocketAddress peer{};
  socklen_t size = 0;
  if (inet_pton(AF_INET, address.c_str(), &peer.v4.sin_addr) == 1) {
    peer.v4.sin_family = AF_INET;
    peer.v4.sin_port = htons(port);
    size = sizeof(peer.v4);
  } else if (inet_pton(AF_INET6, address.c_str(), &peer.v6.sin6_addr) == 1) {
    peer.v6.sin6_family = AF_INET6;
    peer.v6.sin6_port = htons(port);
    size = sizeof(peer.v6);
  } else {
    return Fd();
  }
  Fd fd(socket(peer.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return fd;
  const bool begun = connect(fd.get(), &peer.any, size) == 0 || errno == EINPROGRESS;
  return begun ? std::move(fd) : Fd();
}

void end_when_silent(int fd, Milliseconds silence) {
  const auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  if (silence.count() <= 0) return;
  // The kernel asks once a second after a second of silence; what was sent and is not acknowledged
  // counts as a question. The time limits both, instead of a number of questions.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::min<int64_t>(silence.count(), 1 << 30)));
}

}  // namespace fastcomm
