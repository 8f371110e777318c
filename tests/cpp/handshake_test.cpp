// Hostile and broken peers in the handshake: always an Error, never a crash or a leaked descriptor.
//
//   handshake_test CASE SEED
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "fork_world.h"
#include "fuzz/descriptors.h"
#include "raw_socket.h"
#include "transport/shm/endpoint.h"
#include "transport/shm/handshake.h"

namespace fastcomm::testing {
namespace {

constexpr size_t kSegment = size_t{8} << 20;
constexpr uint64_t kNonce = 0x1234567890abcdef;

Deadline within(int ms) { return Clock::now() + std::chrono::milliseconds(ms); }
int descriptors() { return count_entries("/proc/self/fd"); }

/// What a peer may send instead of a proper introduction.
struct Attack {
  const char* name;
  std::vector<char> bytes;
  std::vector<int> fds;
};

std::vector<Attack> attacks(const Hello& good, int segment, int pidfd, uint64_t seed) {
  const auto bytes_of = [](const Hello& hello) {
    const char* begin = reinterpret_cast<const char*>(&hello);
    return std::vector<char>(begin, begin + sizeof(hello));
  };
  const std::vector<int> pair = {segment, pidfd};
  std::vector<Attack> all;
  std::mt19937_64 bits(seed);
  for (size_t length :
       {size_t{1}, sizeof(Hello) - 1, sizeof(Hello), sizeof(Hello) + 1, size_t{5000}}) {
    std::vector<char> garbage(length);
    for (char& c : garbage) c = static_cast<char>(bits());
    all.push_back({"garbage", garbage, pair});
    all.push_back({"garbage without descriptors", garbage, {}});
  }
  const std::vector<char> whole = bytes_of(good);
  for (size_t length : {size_t{1}, size_t{8}, sizeof(Hello) / 2, sizeof(Hello) - 1}) {
    all.push_back({"truncated", std::vector<char>(whole.begin(), whole.begin() + length), pair});
  }
  std::vector<char> longer = whole;
  longer.push_back(0);
  all.push_back({"too long", longer, pair});
  const auto unlike = [&](const char* name, auto part) {
    Hello other = good;
    other.*part ^= 1;
    all.push_back({name, bytes_of(other), pair});
  };
  unlike("wrong version", &Hello::version);
  unlike("wrong nonce", &Hello::nonce);
  unlike("wrong magic", &Hello::magic);
  all.push_back({"no descriptors", whole, {}});
  all.push_back({"one descriptor", whole, {segment}});
  all.push_back({"three descriptors", whole, {segment, pidfd, segment}});
  all.push_back({"many descriptors", whole, std::vector<int>(30, segment)});
  return all;
}

/// Whatever strangers send, the listener goes on, and accepts the peer that comes after them.
CASE(accept) {
  Endpoint endpoint("memfd");
  Listener listener;
  const Hello own = endpoint.hello(kNonce);
  const int before = descriptors();
  const auto accept = [&](int ms) {
    return accept_introduction(listener, own, endpoint.files(), within(ms));
  };
  for (const Attack& attack : attacks(honest_hello(endpoint, kNonce), endpoint.segment().fd(),
                                      endpoint.files().pidfd, seed)) {
    {
      const Fd stranger = raw_connect(listener.name());
      raw_send(stranger.get(), attack.bytes.data(), attack.bytes.size(), attack.fds);
      ErrorCode code{};
      const std::string text = error_of([&] { accept(20); }, &code);
      EXPECT(code == ErrorCode::kTimeout, attack.name, ": ", text);
    }
    EXPECT(descriptors() == before, attack.name, " leaked");
  }
  // One that connects and goes, and then the real one.
  {
    const Fd gone = raw_connect(listener.name());
  }
  const Fd real = introduce(listener.name(), own, endpoint.files());
  const Introduction taken = accept(5000);
  EXPECT(taken.hello.id == own.id && taken.segment.get() >= 0 && taken.pidfd.get() >= 0);
  const Introduction answer = await_answer(real, kNonce, within(1000));
  EXPECT(answer.hello.id == own.id);
  EXPECT(!error_of([&] { introduce("fastcomm-nobody", own, {0, 0}); }).empty());
}

/// Who has records hands them over, too; who has none takes those of others.
CASE(records) {
  Endpoint endpoint("memfd");
  Listener listener;
  const Hello own = endpoint.hello(kNonce);
  const Fd records(memfd_create("records", MFD_CLOEXEC));
  OwnFiles files = endpoint.files();
  EXPECT(files.records < 0);
  files.records = records.get();
  const Fd with = introduce(listener.name(), own, files);
  const Introduction taken = accept_introduction(listener, own, endpoint.files(), within(5000));
  struct stat theirs{}, ours{};
  EXPECT(fstat(taken.records.get(), &theirs) == 0 && fstat(records.get(), &ours) == 0);
  EXPECT(theirs.st_ino == ours.st_ino && taken.records.get() != records.get());
  EXPECT(await_answer(with, kNonce, within(1000)).records.get() < 0);
}

/// Any number of strangers that connect and say nothing cost next to nothing in total.
CASE(silent) {
  Endpoint endpoint("memfd");
  Listener listener;
  const Hello own = endpoint.hello(kNonce);
  const int before = descriptors();
  {
    std::vector<Fd> strangers;
    for (int i = 0; i < 300; ++i) strangers.push_back(raw_connect(listener.name()));
    const Fd real = introduce(listener.name(), own, endpoint.files());
    const auto start = Clock::now();
    const Introduction taken = accept_introduction(listener, own, endpoint.files(), within(30000));
    EXPECT(seconds_since(start) < 2, seconds_since(start), " s for 300 silent strangers");
    EXPECT(taken.hello.id == own.id);
    await_answer(real, kNonce, within(1000));
  }
  EXPECT(descriptors() == before);
}

/// The same from the other side: a listener that answers nonsense, or nothing, or hangs up.
CASE(answer) {
  Endpoint endpoint("memfd");
  const Hello own = endpoint.hello(kNonce);
  Listener hostile;
  const int before = descriptors();
  const auto connected = [&](auto&& answer) {
    const Fd socket = introduce(hostile.name(), own, endpoint.files());
    Fd other(accept4(hostile.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    answer(other);
    ErrorCode code{};
    const std::string text = error_of([&] { await_answer(socket, kNonce, within(100)); }, &code);
    EXPECT(!text.empty() && (code == ErrorCode::kSystem || code == ErrorCode::kTimeout), text);
  };
  for (const Attack& attack : attacks(honest_hello(endpoint, kNonce), endpoint.segment().fd(),
                                      endpoint.files().pidfd, seed)) {
    connected([&](const Fd& other) {
      raw_send(other.get(), attack.bytes.data(), attack.bytes.size(), attack.fds);
    });
    EXPECT(descriptors() == before, attack.name, " leaked");
  }
  connected([](const Fd&) {});
  connected([](Fd& other) { other = Fd(); });
  EXPECT(descriptors() == before);
}

/// A proper Hello with a segment that is not what it says.
CASE(segment) {
  Endpoint endpoint("memfd");
  Fd pidfd(dup(endpoint.files().pidfd));
  const int before = descriptors();
  const auto refused = [&](const char* name, Fd file, uint64_t announced, bool header) {
    if (header) {
      const SegmentHeader content{kSegmentMagic, announced, {}};
      EXPECT(pwrite(file.get(), &content, sizeof(content), 0) ==
             static_cast<ssize_t>(sizeof(content)));
    }
    Introduction introduction;
    introduction.hello = honest_hello(endpoint, kNonce);
    introduction.hello.id = {1, 2};
    introduction.hello.segment_bytes = announced;
    introduction.segment = std::move(file);
    introduction.pidfd = Fd(dup(pidfd.get()));
    ErrorCode code{};
    const std::string text = error_of([&] { endpoint.adopt(std::move(introduction)); }, &code);
    EXPECT(!text.empty() && code == ErrorCode::kSystem, name, ": ", text);
    EXPECT(endpoint.find({1, 2}) == nullptr);
    EXPECT(descriptors() == before, name, " leaked");
  };
  constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW;
  refused("smaller than announced", hostile_file(4096, kSealed), kSegment, true);
  refused("larger than announced", hostile_file(2 * kSegment, kSealed), kSegment, true);
  refused("empty", hostile_file(0, kSealed), 0, false);
  refused("huge", hostile_file(4096, kSealed), ~uint64_t{0}, false);
  refused("unsealed", hostile_file(kSegment, 0), kSegment, true);
  refused("half sealed", hostile_file(kSegment, F_SEAL_GROW), kSegment, true);
  refused("no header", hostile_file(kSegment, kSealed), kSegment, false);
  refused("a directory", Fd(open("/", O_RDONLY | O_CLOEXEC)), kSegment, false);
  refused("a socket", Fd(socket(AF_UNIX, SOCK_STREAM, 0)), kSegment, false);
  refused("no file", Fd(), kSegment, false);
  // Memory of huge pages where there are none: reading it is a bus fault.
  Fd huge(memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (huge.get() >= 0 && ftruncate(huge.get(), kSegment) == 0) {
    fcntl(huge.get(), F_ADD_SEALS, kSealed);
    refused("huge pages", std::move(huge), kSegment, false);
  }
  pidfd = Fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  refused("no pidfd", hostile_file(kSegment, kSealed), kSegment, true);
  pidfd = Fd(eventfd(0, EFD_CLOEXEC));  // never readable: a death would never be told
  refused("an eventfd for a pidfd", hostile_file(kSegment, kSealed), kSegment, true);
}

/// Another user of the machine who knows everything is refused at both ends.
CASE(other_user) {
  if (geteuid() != 0) {
    std::printf("SKIPPED: only root can become another user\n");
    return;
  }
  // Two processes from the start: a child forked from one with threads, which an endpoint has, may
  // find the allocator of a sanitizer locked for ever.
  ForkedStore store;
  run_processes(2, [&](int rank) {
    Endpoint endpoint("memfd");
    const Hello hello = honest_hello(endpoint, kNonce);
    if (rank == 0) {
      Listener listener;
      store.set("name", listener.name());
      store.get("tried", within(30000));
      // The strangers are still in the listener's queue.
      ErrorCode code{};
      const std::string text = error_of(
          [&] { accept_introduction(listener, hello, endpoint.files(), within(100)); }, &code);
      EXPECT(code == ErrorCode::kTimeout, text);
      return;
    }
    const std::string name = store.get("name", within(30000));
    EXPECT(seteuid(65534) == 0);
    const std::string text = error_of([&] { introduce(name, hello, endpoint.files()); });
    EXPECT(text.find("a process of user 0 is at the socket") != std::string::npos, text);
    const Fd stranger = raw_connect(name);
    raw_send(stranger.get(), &hello, sizeof(hello),
             {endpoint.segment().fd(), endpoint.files().pidfd});
    EXPECT(seteuid(0) == 0);  // a leak checker needs it
    store.set("tried", "1");
  });
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  setenv("FASTCOMM_SEGMENT_MB", "8", 1);  // what kSegment says
  return fastcomm::testing::run_cases(argc, argv);
}
