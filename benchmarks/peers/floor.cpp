// What bare processes need for a collective of fp32 on shared memory: no headers that are compared,
// no deaths noticed, no deadlines, no types, no waiting that lets others run first. What is left is
// what the cores and the memory between them allow, so that `python benchmarks/collectives.py
// --backends fastcomm,floor` shows how far from it a backend is.
//
// Each rank has a region that all have mapped: a line with its flag, and slots. A message of up to
// kOneStep goes in one step; longer ones in blocks of kBlock, of which the next is staged before
// the peers' last is read. Slots take turns, so that no line is written that a peer's cache still
// holds, and a copy into them goes past the caches or not, whichever was faster in the first calls
// of its size: the choice is each rank's own.
//
// With floor_pulled_..., nothing is staged: each rank says where its data is, and the others read
// it there by process_vm_readv, where the kernel lets them. That halves the copies, and costs a
// look at each page.
//
// Memory ordering: a rank publishes the number of its step with a release store when it has staged,
// and reads peers' slots after an acquire load of theirs that is not below. It stages block b where
// b - kTurns was; peers have read that when they publish b - kTurns + 2, which it has waited for
// before it read block b - kTurns + 1.
#include <emmintrin.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>

namespace {

constexpr uint64_t kMiB = 1 << 20, kOneStep = kMiB, kBlock = kMiB, kTurns = 8;
constexpr uint64_t kSlots = kTurns * kBlock, kLine = 4096;
constexpr int kMostRanks = 16;
using Clock = std::chrono::steady_clock;

/// How a size is staged: plainly and past the caches in turn, until one is known to be faster.
struct Staging {
  static constexpr int kTrials = 20;
  int calls = 0;
  double seconds[2] = {0, 0};
  bool past() const { return calls < 2 * kTrials ? calls % 2 == 1 : seconds[1] < seconds[0]; }
};

/// In the line of a rank's flag.
struct Place {
  std::atomic<uint32_t> flag;
  pid_t process;
  /// Of the operation that goes on: written before its first step is published, read until its
  /// last.
  uint64_t data;
};

struct Floor {
  int rank = 0, size = 0;
  char* region[kMostRanks] = {};
  char* results[kMostRanks] = {};
  uint32_t step = 0;
  uint64_t turn = 0;
  uint64_t length = 0;  // of the slots of the operation before
  std::map<uint64_t, Staging> staging;

  Place& place(int r) const { return *reinterpret_cast<Place*>(region[r]); }
  std::atomic<uint32_t>& flag(int r) const { return place(r).flag; }
  /// Slots of another length lie where peers may still read the last one's: they are waited for.
  void turns_are(uint64_t wanted) {
    if (wanted != length) wait(step);
    length = wanted;
  }
  /// All have come so far.
  void meet() {
    publish();
    wait(step);
  }
  void publish() { flag(rank).store(++step, std::memory_order_release); }
  void wait(uint32_t wanted) const {
    for (int r = 0; r < size; ++r) {
      for (int looks = 0;
           static_cast<int32_t>(flag(r).load(std::memory_order_acquire) - wanted) < 0; ++looks) {
        if (looks < 5000) {
          _mm_pause();
        } else {
          sched_yield();
        }
      }
    }
  }
};

void copy(char* to, const char* from, uint64_t bytes, bool past) {
  if (!past || bytes < 4096 || reinterpret_cast<uintptr_t>(to) % 16 != 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  uint64_t at = 0;
  for (; at + 64 <= bytes; at += 64) {
    for (int i = 0; i < 64; i += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + i),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + i)));
    }
  }
  _mm_sfence();  // orders such stores before the release of the flag
  std::memcpy(to + at, from + at, bytes - at);
}

void add(float* to, float* second, const float* const* from, int sources, uint64_t count) {
  for (uint64_t begin = 0; begin < count; begin += 2048) {
    const uint64_t end = std::min(count, begin + 2048);
    if (sources == 2) {
      const float *a = from[0], *b = from[1];
#pragma GCC ivdep
      for (uint64_t i = begin; i < end; ++i) to[i] = a[i] + b[i];
    } else {
      float sums[2048];  // a source may be the destination
      std::memcpy(sums, from[0] + begin, (end - begin) * sizeof(float));
      for (int s = 1; s < sources; ++s) {
        const float* const more = from[s] + begin;
        for (uint64_t i = 0; i < end - begin; ++i) sums[i] += more[i];
      }
      std::memcpy(to + begin, sums, (end - begin) * sizeof(float));
    }
    if (second != nullptr) std::memcpy(second + begin, to + begin, (end - begin) * sizeof(float));
  }
}

/// Steps of a message: of each block of it stage(slot, at, length, past), then read(slot of a rank,
/// at, length). A slot holds `parts` blocks.
template <class Stage, class Read>
void in_blocks(Floor& floor, uint64_t kind, uint64_t bytes, uint64_t parts, const Stage& stage,
               const Read& read) {
  Staging& staging = floor.staging[kind << 56 | bytes];
  const bool past = staging.past();
  const auto begun = Clock::now();
  const uint64_t block = bytes * parts <= kOneStep ? bytes : kBlock / parts / 64 * 64;
  const uint64_t blocks = (bytes + block - 1) / block;
  const uint64_t length = (block * parts + 63) / 64 * 64;
  const uint64_t places = kSlots / length;
  floor.turns_are(length);
  const auto slot = [&](int r, uint64_t b) {
    return floor.region[r] + kLine + (floor.turn + b) % places * length;
  };
  const uint32_t first = floor.step;
  for (uint64_t b = 0; b <= blocks; ++b) {
    const auto part = [&](uint64_t which) { return std::min(block, bytes - which * block); };
    if (b < blocks) {
      stage(slot(floor.rank, b), b * block, part(b), past);
      floor.publish();
    }
    if (b == 0) continue;
    floor.wait(first + static_cast<uint32_t>(b));
    read([&](int r) { return slot(r, b - 1); }, (b - 1) * block, part(b - 1));
  }
  floor.turn += blocks;
  floor.publish();  // has read
  if (staging.calls < 2 * Staging::kTrials) {
    if (staging.calls >= 4)
      staging.seconds[past] += std::chrono::duration<double>(Clock::now() - begun).count();
    ++staging.calls;
  }
}

/// From where a rank's data is; false: the kernel refuses.
bool pull(const Floor& floor, int from, void* to, uint64_t at, uint64_t bytes) {
  const Place& there = floor.place(from);
  const iovec here{to, bytes};
  const iovec theirs{reinterpret_cast<void*>(there.data + at), bytes};
  return process_vm_readv(there.process, &here, 1, &theirs, 1, 0) == static_cast<ssize_t>(bytes);
}

void begin_pulling(Floor& floor, const void* data) {
  floor.place(floor.rank).data = reinterpret_cast<uint64_t>(data);
  floor.meet();
}

}  // namespace

extern "C" {

/// Whether every rank lets this one read its memory. Collective.
int floor_can_pull(Floor* floor) {
  const uint64_t known = 0x70756c6c;
  begin_pulling(*floor, &known);
  bool all = true;
  for (int r = 0; r < floor->size; ++r) {
    uint64_t read = 0;
    all = pull(*floor, r, &read, 0, sizeof(read)) && read == known && all;
  }
  floor->meet();
  return all;
}

void floor_pulled_all_gather(Floor* floor, char* whole, const char* part, uint64_t bytes) {
  begin_pulling(*floor, part);
  for (int hop = 0; hop < floor->size; ++hop) {
    const int r = (floor->rank + hop) % floor->size;
    char* const to = whole + static_cast<uint64_t>(r) * bytes;
    if (hop == 0) {
      std::memcpy(to, part, bytes);
    } else {
      pull(*floor, r, to, 0, bytes);
    }
  }
  floor->meet();
}

void floor_pulled_broadcast(Floor* floor, char* data, uint64_t bytes) {
  begin_pulling(*floor, data);
  if (floor->rank != 0) pull(*floor, 0, data, 0, bytes);
  floor->meet();
}

void floor_pulled_all_reduce(Floor* floor, float* data, uint64_t count) {
  constexpr uint64_t kPiece = 64 * 1024 / sizeof(float);
  alignas(64) static float theirs[kPiece];
  begin_pulling(*floor, data);
  const auto size = static_cast<uint64_t>(floor->size);
  const uint64_t share = (count + size - 1) / size;
  const auto begin = [&](int r) { return std::min(count, share * static_cast<uint64_t>(r)); };
  for (uint64_t at = begin(floor->rank), end = begin(floor->rank + 1); at < end; at += kPiece) {
    const uint64_t length = std::min(kPiece, end - at);
    for (int hop = 1; hop < floor->size; ++hop) {
      pull(*floor, (floor->rank + hop) % floor->size, theirs, at * sizeof(float),
           length * sizeof(float));
      const float* const from[] = {data + at, theirs};
      add(data + at, nullptr, from, 2, length);
    }
  }
  floor->meet();
  for (int hop = 1; hop < floor->size; ++hop) {
    const int r = (floor->rank + hop) % floor->size;
    pull(*floor, r, data + begin(r), begin(r) * sizeof(float),
         (begin(r + 1) - begin(r)) * sizeof(float));
  }
  floor->meet();
}

/// The descriptor of memory for one rank's region; below 0: there is none.
int floor_memory() {
  const int memory = memfd_create("fastcomm-floor", MFD_CLOEXEC);
  if (memory >= 0 && ftruncate(memory, static_cast<off_t>(kLine + kSlots)) != 0) return -1;
  return memory;
}

void floor_barrier(Floor* floor) { floor->meet(); }

void* floor_open(int rank, int size, const char* const* paths) {
  if (size > kMostRanks) return nullptr;
  auto* floor = new Floor;
  floor->rank = rank;
  floor->size = size;
  for (int r = 0; r < size; ++r) {
    const int memory = open(paths[r], O_RDWR | O_CLOEXEC);
    void* const there =
        memory < 0 ? MAP_FAILED
                   : mmap(nullptr, kLine + kSlots, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (memory >= 0) close(memory);
    if (there == MAP_FAILED) return nullptr;  // the process ends soon
    floor->region[r] = static_cast<char*>(there);
  }
  floor->place(rank).process = getpid();
  return floor;
}

void floor_all_reduce(Floor* floor, float* data, uint64_t count) {
  const uint64_t bytes = count * sizeof(float);
  if (bytes * static_cast<uint64_t>(floor->size - 1) <= kOneStep) {
    in_blocks(
        *floor, 1, bytes, 1,
        [&](char* slot, uint64_t, uint64_t length, bool past) {
          copy(slot, reinterpret_cast<char*>(data), length, past);
        },
        [&](const auto& slot, uint64_t, uint64_t) {
          const float* from[kMostRanks];
          for (int r = 0; r < floor->size; ++r) {
            from[r] = r == floor->rank ? data : reinterpret_cast<const float*>(slot(r));
          }
          add(data, nullptr, from, floor->size, count);
        });
    return;
  }
  // Of each block a rank reduces its part where it staged the block, and the others fetch it there.
  const uint64_t share = kBlock / static_cast<uint64_t>(floor->size) / 64 * 64;
  const auto part = [&](int r, uint64_t length) {
    const uint64_t begin = std::min(length, share * static_cast<uint64_t>(r));
    const uint64_t end = r + 1 == floor->size ? length : std::min(length, begin + share);
    return std::pair<uint64_t, uint64_t>(begin, end - begin);
  };
  Staging& staging = floor->staging[uint64_t{2} << 56 | bytes];
  const bool past = staging.past();
  const auto begun = Clock::now();
  floor->turns_are(kBlock);
  const uint64_t blocks = (bytes + kBlock - 1) / kBlock;
  const uint32_t first = floor->step;
  const auto slot = [&](int r, uint64_t b) {
    return floor->region[r] + kLine + (floor->turn + b) % kTurns * kBlock;
  };
  const auto length_of = [&](uint64_t b) { return std::min(kBlock, bytes - b * kBlock); };
  char* const whole = reinterpret_cast<char*>(data);
  for (uint64_t b = 0; b < blocks + 2; ++b) {
    if (b < blocks) {
      for (int r = 0; r < floor->size; ++r) {
        const auto [at, length] = part(r, length_of(b));
        if (r != floor->rank)
          copy(slot(floor->rank, b) + at, whole + b * kBlock + at, length, past);
      }
    }
    if (b >= 1 && b <= blocks) {
      floor->wait(first + static_cast<uint32_t>(b));
      const auto [at, length] = part(floor->rank, length_of(b - 1));
      const float* from[kMostRanks];
      float* const own = reinterpret_cast<float*>(whole + (b - 1) * kBlock + at);
      for (int r = 0; r < floor->size; ++r) {
        from[r] = r == floor->rank ? own : reinterpret_cast<const float*>(slot(r, b - 1) + at);
      }
      add(own, reinterpret_cast<float*>(slot(floor->rank, b - 1) + at), from, floor->size,
          length / sizeof(float));
    }
    floor->publish();
    if (b >= 2) {
      floor->wait(first + static_cast<uint32_t>(b));
      for (int r = 0; r < floor->size; ++r) {
        const auto [at, length] = part(r, length_of(b - 2));
        if (r != floor->rank)
          std::memcpy(whole + (b - 2) * kBlock + at, slot(r, b - 2) + at, length);
      }
    }
  }
  floor->publish();
  floor->turn += blocks;
  if (staging.calls < 2 * Staging::kTrials) {
    if (staging.calls >= 4)
      staging.seconds[past] += std::chrono::duration<double>(Clock::now() - begun).count();
    ++staging.calls;
  }
}

void floor_all_gather(Floor* floor, char* whole, const char* part, uint64_t bytes) {
  in_blocks(
      *floor, 3, bytes, 1,
      [&](char* slot, uint64_t at, uint64_t length, bool past) {
        copy(slot, part + at, length, past);
        std::memcpy(whole + static_cast<uint64_t>(floor->rank) * bytes + at, part + at, length);
      },
      [&](const auto& slot, uint64_t at, uint64_t length) {
        for (int r = 0; r < floor->size; ++r) {
          if (r != floor->rank)
            std::memcpy(whole + static_cast<uint64_t>(r) * bytes + at, slot(r), length);
        }
      });
}

void floor_reduce_scatter(Floor* floor, float* part, const float* whole, uint64_t count) {
  const uint64_t bytes = count * sizeof(float), size = static_cast<uint64_t>(floor->size);
  const auto* const given = reinterpret_cast<const char*>(whole);
  in_blocks(
      *floor, 5, bytes, size,
      [&](char* slot, uint64_t at, uint64_t length, bool past) {
        for (uint64_t r = 0; r < size; ++r) {
          if (r != static_cast<uint64_t>(floor->rank))
            copy(slot + r * length, given + r * bytes + at, length, past);
        }
      },
      [&](const auto& slot, uint64_t at, uint64_t length) {
        const float* from[kMostRanks];
        const uint64_t own = static_cast<uint64_t>(floor->rank);
        for (int r = 0; r < floor->size; ++r) {
          const char* const there =
              r == floor->rank ? given + own * bytes + at : slot(r) + own * length;
          from[r] = reinterpret_cast<const float*>(there);
        }
        float* const to = reinterpret_cast<float*>(reinterpret_cast<char*>(part) + at);
        add(to, nullptr, from, floor->size, length / sizeof(float));
      });
}

void floor_broadcast(Floor* floor, char* data, uint64_t bytes) {
  in_blocks(
      *floor, 4, bytes, 1,
      [&](char* slot, uint64_t at, uint64_t length, bool past) {
        if (floor->rank == 0) copy(slot, data + at, length, past);
      },
      [&](const auto& slot, uint64_t at, uint64_t length) {
        if (floor->rank != 0) std::memcpy(data + at, slot(0), length);
      });
}
}
