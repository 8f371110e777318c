#include "transport/shm/handshake.h"

#include <utility>

#include "core/error.h"

namespace fastcomm {
namespace {

constexpr uint64_t kHelloMagic = 0x6f6c6c65686d6366;  // "fcmhello"

void send_introduction(int socket, const Hello& own, const OwnFiles& given) {
  Hello hello = own;
  hello.magic = kHelloMagic;
  hello.version = kProtocolVersion;
  const int files[] = {given.segment, given.pidfd, given.records};
  hello.descriptors = given.records < 0 ? 2 : 3;
  send_parcel(socket, &hello, sizeof(hello), files, static_cast<int>(hello.descriptors));
}

}  // namespace

Introduction receive_introduction(int socket, uint64_t nonce) {
  Introduction result;
  const Hello& hello = result.hello;
  Parcel parcel = receive_parcel(socket, &result.hello, sizeof(Hello), 2, 3);
  if (parcel.lost) {
    throw Error(ErrorCode::kSystem,
                "the descriptors of a handshake did not arrive: raise the limit of open files "
                "(ulimit -n)");
  }
  const bool as_told = parcel.whole && hello.descriptors == static_cast<uint64_t>(parcel.count);
  if (!as_told || hello.magic != kHelloMagic) {
    throw Error(ErrorCode::kSystem, "a handshake was truncated or is not of fastcomm");
  }
  if (hello.version != kProtocolVersion) {
    throw Error(ErrorCode::kSystem,
                concat("a peer speaks version ", hello.version, " of the handshake, this process ",
                       kProtocolVersion, ": install the same fastcomm for every rank"));
  }
  if (hello.nonce != nonce) throw Error(ErrorCode::kSystem, "a handshake is of another group");
  result.segment = std::move(parcel.files[0]);
  result.pidfd = std::move(parcel.files[1]);
  result.records = std::move(parcel.files[2]);
  return result;
}

Introduction answer_introduction(int socket, const Hello& own, const OwnFiles& files) {
  check_user(socket);
  Introduction peer = receive_introduction(socket, own.nonce);
  send_introduction(socket, own, files);
  return peer;
}

Fd introduce(const std::string& name, const Hello& own, const OwnFiles& files) {
  Fd fd = connect_to(name);
  send_introduction(fd.get(), own, files);
  return fd;
}

Introduction accept_introduction(const Listener& listener, const Hello& own, const OwnFiles& files,
                                 Deadline deadline) {
  return accept_one(listener, deadline,
                    [&](int socket) { return answer_introduction(socket, own, files); });
}

Introduction await_answer(const Fd& socket, uint64_t nonce, Deadline deadline) {
  if (!wait_readable(socket.get(), deadline)) {
    throw Error(ErrorCode::kTimeout, "a peer did not answer the handshake in time");
  }
  return receive_introduction(socket.get(), nonce);
}

}  // namespace fastcomm
