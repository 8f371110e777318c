// Ranks that were started wrongly, and a store that holds nonsense: an Error on every rank, at
// once.
//
//   forming_test CASE SEED
#include "shm_world.h"
#include "transport/shm/room.h"

namespace fastcomm::testing {
namespace {

/// One rank assumes another size than the rest: all are told, none waits for its timeout. The same
/// store then serves ranks that agree.
CASE(world_size) {
  const std::vector<std::vector<int>> worlds = {{2, 3}, {3, 2}, {3, 3, 4}, {3, 2, 3}, {2, 3, 2}};
  for (const std::vector<int>& sizes : worlds) {
    ForkedStore store;
    // A rank beyond rank 0's size does not exist there: only its own timeout can tell it.
    const int ranks = std::min(static_cast<int>(sizes.size()), sizes[0]);
    run_processes(ranks, [&](int rank) {
      Endpoint endpoint("memfd");
      ErrorCode code{};
      const auto start = Clock::now();
      const std::string text = error_of([&] { form(store, rank, sizes[rank], &endpoint); }, &code);
      EXPECT(code == ErrorCode::kInvalidArgument && !text.empty(), "rank ", rank, ": ", text);
      EXPECT(text.find("give every rank the same world size") != std::string::npos, text);
      EXPECT(seconds_since(start) < 5, seconds_since(start));
    });
    run_processes(2, [&](int rank) {
      Endpoint endpoint("memfd");
      const auto result = form(store, rank, 2, &endpoint);
      EXPECT(result.group != nullptr, result.reason);
    });
  }
}

/// A value in the store, what is put there instead, and the rank that reads it.
struct Nonsense {
  const char* round;
  std::string value;
  int reader;
};

/// Passes everything through except one peer's value of one round.
class TamperedStore final : public Bootstrap {
 public:
  TamperedStore(Bootstrap& store, const Nonsense& nonsense) : store_(store), nonsense_(nonsense) {}
  void set(const std::string& key, const std::string& value) override { store_.set(key, value); }
  bool has(const std::string& key) override { return store_.has(key); }
  std::string get(const std::string& key, Deadline deadline) override {
    std::string value = store_.get(key, deadline);
    return key.rfind(nonsense_.round, 0) == 0 ? nonsense_.value : value;
  }

 private:
  Bootstrap& store_;
  const Nonsense& nonsense_;
};

/// Each value of each round, too short, too long or out of bounds.
CASE(nonsense) {
  const auto config = [](uint64_t payload, uint64_t block, uint64_t ring = 16384) {
    return "+" + to_bytes(GroupConfig{payload, block, ring});
  };
  Record cramped{};
  cramped.version = kProtocolVersion;
  cramped.room = kLeastRoom - 1;
  std::strcpy(cramped.listener, "here");
  std::vector<Nonsense> all = {
      {"welcome/", "", 1},
      {"welcome/", "0123456789abcdef", 1},
      {"welcome/", "0123456789abcdef/", 1},
      {"welcome/", "0123456789abcdeg/2", 1},
      {"welcome/", "-123456789abcdef/2", 1},
      {"welcome/", "0123456789abcdef/two", 1},
      {"welcome/", "0123456789abcdef/99999999999999", 1},
      {"ack/", "", 0},
      {"ack/", "2 ", 0},
      {"agreed/", "", 1},
      {"agreed/", "+", 1},
      {"agreed/", "?", 1},
      {"agreed/", config(4096, 0), 1},
      {"agreed/", config(0, 65536), 1},
      {"agreed/", config(4097, 65536), 1},
      {"agreed/", config(uint64_t{1} << 62, 65536), 1},
      {"agreed/", config(4096, uint64_t{1} << 62), 1},
      {"agreed/", config(4096, 65536, uint64_t{1} << 62), 1},
      {"record/", "", 0},
      {"record/", std::string(sizeof(Record) - 1, 'x'), 0},
      {"record/", std::string(sizeof(Record) + 1, 'x'), 1},
      {"record/", to_bytes(cramped), 1},
      {"known/", "", 0},
      {"known/", "0", 1},
      {"known/", "001", 0},
      {"known/", "0x", 1},
      {"reached/", "", 0},
      {"reached/", "01 ", 1},
  };
  for (const Nonsense& nonsense : all) {
    ForkedStore store;
    run_processes(2, [&](int rank) {
      Endpoint endpoint("memfd");
      TamperedStore tampered(store, nonsense);
      ErrorCode code{};
      const bool reads = rank == nonsense.reader;
      Bootstrap& own = reads ? static_cast<Bootstrap&>(tampered) : store;
      const Deadline deadline = reads ? soon() : Clock::now() + Milliseconds(300);
      const std::string text =
          error_of([&] { form(own, rank, 2, &endpoint, "", deadline); }, &code);
      // The other rank, which saw nothing wrong, may wait for this one, or may be finished as well.
      if (!reads) return;
      EXPECT(code == ErrorCode::kSystem && text.find("the store holds no valid") == 0,
             nonsense.round, " '", nonsense.value, "': ", text);
    });
  }
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  setenv("FASTCOMM_SEGMENT_MB", "8", 1);
  return fastcomm::testing::run_cases(argc, argv);
}
