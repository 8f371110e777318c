// What tests of sends and receives share: a world with rings, calls of bytes, contents.
#pragma once

#include <algorithm>

#include "check.h"
#include "failure.h"
#include "rank_world.h"

namespace fastcomm::testing {

using Pointer = std::shared_ptr<PeerOperation>;

class World : public RankWorld {
 public:
  explicit World(int size) : RankWorld(size, 1, 0, ScratchLayout{}, Rings::kSome) {}
};

inline int operations(int fallback) {
  const char* wanted = std::getenv("FC_TEST_OPERATIONS");
  return wanted == nullptr ? fallback : std::atoi(wanted);
}

inline PeerCall message(bool is_send, int peer, int tag, char* data, uint64_t count,
                        DType dtype = DType::kUInt8) {
  return PeerCall{is_send, peer, tag, dtype, count, data};
}

inline Pointer send(Communicator& group, int to, int tag, std::vector<char>& data) {
  return group.post(message(true, to, tag, data.data(), data.size()), nullptr);
}

inline Pointer recv(Communicator& group, int from, int tag, std::vector<char>& data) {
  return group.post(message(false, from, tag, data.data(), data.size()), nullptr);
}

inline void wait(Communicator& group, const Pointer& operation, Milliseconds timeout = kTimeout) {
  group.wait(*operation, timeout, Deadline::max(), nullptr);
}

inline void expect_good(Communicator& group, const Pointer& operation) {
  wait(group, operation);
  const std::string text = failure_of(*operation).text;
  EXPECT(text.empty(), operation->describe(), ": ", text);
}

/// What a call ends with, whether it raises or its operation fails.
template <class Start>
inline Failure failure_of_call(Communicator& group, const Start& start,
                               Milliseconds timeout = kTimeout) {
  Failure failure;
  const auto ended = [&] {
    const Pointer operation = start();
    wait(group, operation, timeout);
    failure = failure_of(*operation);
  };
  const std::string raised = error_of(ended, &failure.code);
  if (!raised.empty()) failure.failed = true, failure.text = raised;
  return failure;
}

inline std::vector<char> pattern(size_t bytes, uint64_t seed) {
  std::vector<char> data(bytes);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t i = 0; i < bytes; ++i) {
    if (i % 8 == 0) state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = static_cast<char>(state >> (i % 8 * 8));
  }
  return data;
}

/// Sizes around the limits that decide how a message travels.
inline constexpr size_t kSlotBytes = ring_slot_bytes(2);
inline constexpr size_t kSizes[] = {0,
                                    1,
                                    8,
                                    63,
                                    kEagerBytes - 1,
                                    kEagerBytes,
                                    kEagerBytes + 1,
                                    kSlotBytes - 1,
                                    kSlotBytes,
                                    kSlotBytes + 1,
                                    kSlotBytes * kRingSlots,
                                    kSlotBytes * kRingSlots + 1,
                                    kSlotBytes * 3 * kRingSlots + 5};

}  // namespace fastcomm::testing
