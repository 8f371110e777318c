// The fuzz target of the handshake: every byte that another process can put before a rank while a
// group is formed. The first byte of the input chooses the way:
//
//   answer     a message to a rank that connected           (await_answer, then Endpoint::adopt)
//   connect    a message to a rank that listens             (answer_introduction, then adopt)
//   header     the file behind a segment                    (Mapping)
//   form       the store and the sockets of a whole group   (make_shm_transport)
//
// What must hold, whatever the input: nothing but fastcomm::Error is raised; a message that was
// changed is not taken, one that was not is; no descriptor and no mapping stays behind; nothing
// hangs. Sanitizers look for the rest. Runs under libFuzzer, or with replay.cpp.
#include <fstream>
#include <thread>

#include "fork_world.h"
#include "hostile_ranks.h"
#include "valid_inputs.h"

namespace fastcomm::testing {
namespace {

constexpr uint64_t kNonce = 0x1234567890abcdef;
constexpr GroupConfig kConfig{256, 4096, 1024};
constexpr int kMostRanks = 3;

[[noreturn]] void wrong(const std::string& what) {
  std::fprintf(stderr, "FUZZ: %s\n", what.c_str());
  std::abort();
}

void must(bool condition, const char* what) {
  if (!condition) wrong(what);
}

size_t scratch_of(const GroupConfig& config, int size) {
  return 2 * (config.payload_bytes + config.block_bytes) + 64 * static_cast<size_t>(size);
}

/// The rank under test and its peers, made once since endpoints have threads.
struct Stage {
  Endpoint own{"memfd"};
  std::vector<std::unique_ptr<Actor>> actors;
  int descriptors = 0;

  Stage() {
    for (int rank = 0; rank < kMostRanks; ++rank) {
      auto actor = std::make_unique<Actor>();
      const size_t bytes = sizeof(WindowHeader) + scratch_of(kConfig, kMostRanks);
      actor->window = actor->endpoint.allocate(bytes);
      actor->endpoint.segment().reserve(actor->window, bytes);
      new (actor->endpoint.segment().mapping().at(actor->window)) WindowHeader{};
      actor->listener = std::make_unique<Listener>();
      fcntl(actor->listener->fd(), F_SETFL, O_NONBLOCK);
      actors.push_back(std::move(actor));
    }
    descriptors = count_entries("/proc/self/fd");
  }
};

void run_message(Stage& stage, Input& input, bool listening) {
  Actor& peer = *stage.actors[0];
  const Message message = introduction_of(peer.endpoint, peer.files, kNonce, input);
  int ends[2];
  must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  const Fd ours(ends[0]);
  Fd theirs(ends[1]);
  raw_send(theirs.get(), message.bytes.data(), message.bytes.size(), message.fds);
  bool adopted = false;
  if (input.byte() % 2 == 1) theirs = Fd();  // the peer is gone before an answer
  try {
    const Hello own = stage.own.hello(kNonce);
    Introduction introduction =
        listening ? answer_introduction(ours.get(), own, stage.own.files())
                  : await_answer(ours, kNonce, Clock::now() + std::chrono::seconds(10));
    must(message.bytes.size() == sizeof(Hello), "a message of another length was taken");
    must(message.fds.size() == introduction.hello.descriptors, "other descriptors were taken");
    const Hello& hello = introduction.hello;
    must(hello.magic == kHelloMagic && hello.version == kProtocolVersion && hello.nonce == kNonce,
         "a message of another kind was taken");
    stage.own.adopt(std::move(introduction));
    adopted = true;
  } catch (const Error&) {
  }
  const bool answered = !listening || theirs.get() >= 0;
  must(adopted || !message.valid || !answered, "a valid message was refused");
  must(!adopted || message.fds[1] == peer.endpoint.files().pidfd, "a pidfd that is none was taken");
  must(!adopted || message.fds[0] == peer.endpoint.segment().fd(), "a false segment was mapped");
}

void run_header(Input& input) {
  const uint64_t announced = (input.byte() % 64) * 1024;
  SegmentHeader header{kSegmentMagic, announced, {}};
  std::string content(reinterpret_cast<const char*>(&header), sizeof(header));
  bool valid = !input.tamper(content);
  if (content.size() > announced) content.resize(announced);
  const int seals = input.byte() % 4 == 0 ? F_SEAL_SHRINK | F_SEAL_GROW : input.byte() & 0xf;
  valid &= (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) == (F_SEAL_SHRINK | F_SEAL_GROW);
  // A file that may not be written cannot be mapped to write.
  valid &= (seals & F_SEAL_WRITE) == 0 && announced >= sizeof(header);
  const Fd file = hostile_file(announced, seals, content);
  const uint64_t told = input.byte() % 4 == 0 ? announced : input.word();
  valid &= told == announced;
  bool mapped = false;
  try {
    const Mapping mapping(file.get(), told, true);
    mapped = true;
    must(mapping.bytes() == announced && mapping.header().magic == kSegmentMagic, "a false header");
  } catch (const Error&) {
  }
  must(mapped || !valid, "a valid segment was refused");
}

void run_form(Stage& stage, Input& input) {
  const int size = 2 + input.byte() % (kMostRanks - 1);
  const int rank = input.byte() % size;
  HostileStore store(rank, size, stage.actors, kConfig, input);
  // Only an honest group gets time: another one would use it up.
  const auto patience =
      input.empty() ? std::chrono::milliseconds(10000) : std::chrono::milliseconds(0);
  bool formed = false;
  try {
    const auto result = make_shm_transport(store, rank, size, &stage.own, "", kConfig, scratch_of,
                                           Clock::now() + patience);
    formed = result.group != nullptr;
    must(formed || !result.reason.empty(), "no group, and no reason");
  } catch (const Error&) {
  }
  must(formed || !store.honest() || patience.count() < 1000, "honest ranks got no group");
  for (auto& actor : stage.actors) {
    actor->socket = Fd();
    for (;;) {  // nobody may be left in the queue for the next input
      const Fd left(accept4(actor->listener->fd(), nullptr, nullptr, SOCK_CLOEXEC));
      if (left.get() < 0) break;
    }
  }
}

/// Frees what closed groups still keep, then counts descriptors and mappings.
void check_leaks(Stage& stage) {
  const auto start = Clock::now();
  for (;;) {
    const uint64_t offset = stage.own.allocate(4096);
    stage.own.free_later(offset, 4096, [] { return true; });
    const int now = count_entries("/proc/self/fd");
    if (now <= stage.descriptors) break;
    if (seconds_since(start) > 10) {
      if (std::system(concat("ls -l /proc/", getpid(), "/fd >&2").c_str()) != 0) std::perror("ls");
      wrong(concat("descriptors leaked: ", stage.descriptors, " became ", now));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  std::ifstream maps("/proc/self/maps");
  int segments = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") != std::string::npos) ++segments;
  }
  if (segments > 40) wrong(concat(segments, " mappings of segments are left"));
}

}  // namespace
}  // namespace fastcomm::testing

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  setenv("FASTCOMM_SEGMENT_MB", "8", 1);
  if (const char* folder = std::getenv("FC_SEEDS")) {  // folder for first inputs
    int number = 0;
    for (const auto& input : fastcomm::testing::valid_inputs()) {
      std::ofstream file(std::string(folder) + "/valid-" + std::to_string(number++));
      file.write(reinterpret_cast<const char*>(input.data()),
                 static_cast<std::streamsize>(input.size()));
    }
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fastcomm::testing;
  static auto* stage = new Stage;
  static uint64_t executions = 0;
  Input input(data, size);
  const uint8_t way = input.byte();
  if (way % 4 == 0) run_message(*stage, input, false);
  if (way % 4 == 1) run_message(*stage, input, true);
  if (way % 4 == 2) run_header(input);
  if (way % 4 == 3) run_form(*stage, input);
  must(failures == 0, "see above");
  if (++executions % 64 == 0) check_leaks(*stage);
  return 0;
}
