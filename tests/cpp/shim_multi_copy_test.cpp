// The batched copy, byte for byte, guards included; on the host under the execution shim, or on a
// GPU when compiled by nvcc.
//
//   shim_multi_copy_test [CASE [SEED]]     CASE: alignments | division | tables | exact | grid
//                                          | race | refused | large
//
// division is arithmetic: which bytes of a copy between unlike ends do not move in packs. exact is
// for AddressSanitizer: sources that end where their memory ends. race is the short program that
// ThreadSanitizer watches. large needs a GPU, and does nothing without one.
#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "check.h"
#include "device_memory.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/copy_block.h"
#include "kernels/cuda/multi_copy.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace fastcomm::testing {
namespace {

constexpr uint64_t kChunk = uint64_t{kTableThreads} * kPacksInFlight * kPackBytes;

struct Piece {
  uint64_t bytes;
  size_t src_offset;  // bytes after a pack's start
  size_t dst_offset;
};

std::vector<char> random_bytes(uint64_t bytes, std::mt19937_64& random) {
  std::vector<char> data(bytes);
  for (char& byte : data) byte = static_cast<char>(random());
  return data;
}

/// Copies all pieces by one call and compares everything.
void copy_pieces(const std::vector<Piece>& pieces, std::mt19937_64& random) {
  Arena arena;
  std::vector<size_t> src, dst;
  for (const Piece& piece : pieces) {
    src.push_back(arena.add(piece.bytes, piece.src_offset));
    dst.push_back(arena.add(piece.bytes, piece.dst_offset));
  }
  std::vector<CopySegment> segments;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::vector<char> data = random_bytes(pieces[i].bytes, random);
    std::copy(data.begin(), data.end(), arena.host(src[i]));
    segments.push_back({arena.device(dst[i]), arena.device(src[i]), pieces[i].bytes});
  }
  arena.upload();
  for (size_t i = 0; i < pieces.size(); ++i) {
    std::copy_n(arena.host(src[i]), pieces[i].bytes, arena.host(dst[i]));
  }
#if defined(FC_SHIM)
  shim::last_launch = {};
#endif
  launch_multi_copy(segments.data(), static_cast<int>(segments.size()), nullptr);
  const long wrong = arena.first_difference();
#if defined(FC_SHIM)
  const size_t most = pieces.size() <= 64 ? 2048 : pieces.size() <= 256 ? 8192 : 32764;
  EXPECT(shim::last_launch.parameter_bytes <= most, pieces.size(), " pieces take ",
         shim::last_launch.parameter_bytes, " bytes of parameters");
#endif
  EXPECT(wrong < 0, pieces.size(), " pieces, the first of ", pieces.empty() ? 0 : pieces[0].bytes,
         " bytes: byte ", wrong);
}

/// Every pair of alignments, with sizes around the limits of packs and chunks.
CASE(alignments) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> sizes = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65};
  for (const uint64_t limit : {kChunk, 2 * kChunk, 5 * kChunk}) {
    for (const uint64_t less : {33, 17, 16, 15, 1, 0}) {
      sizes.push_back(limit - less);
      sizes.push_back(limit + less);
    }
  }
  for (size_t src = 0; src < 16; ++src) {
    for (size_t dst = 0; dst < 16; ++dst) {
      std::vector<Piece> pieces;
      for (const uint64_t size : sizes) pieces.push_back({size, src, dst});
      copy_pieces(pieces, random);
    }
  }
}

/// Between ends of different alignment, only a segment's own ends go byte by byte, and no source
/// pack extends beyond what may be read.
CASE(division) {
  alignas(kPackBytes) static char to[2 * kPackBytes], from[2 * kPackBytes];
  constexpr uint64_t kSizes[] = {0,  1,  15,  16,         17,     31,
                                 32, 33, 100, kChunk - 1, kChunk, kChunk + 16};
  for (int ends = 0; ends < 256; ++ends) {
    const uint64_t dst = ends % 16, src = ends / 16;
    if (src == dst) continue;
    for (const uint64_t bytes : kSizes) {
      for (const uint64_t before : {0, 7, 15, 4096}) {
        for (const uint64_t behind : {0, 7, 15, 16, 4096}) {
          const ShiftedPacks part(to + dst, from + src, bytes, {before, behind});
          const auto say = concat(bytes, " bytes from ", src, " to ", dst, " between ", before,
                                  " and ", behind, ": packs ", part.begin, " to ", part.end);
          EXPECT(part.begin <= part.end, say);
          if (part.begin < part.end) {
            EXPECT(part.head + part.end * kPackBytes <= bytes, say);
            EXPECT(before + part.head + part.begin * kPackBytes >= part.shift, say);
            EXPECT(part.head + (part.end + 1) * kPackBytes - part.shift <= bytes + behind, say);
          }
          const bool inside = before >= 15 && behind >= 15;
          const uint64_t whole = bytes < part.head ? 0 : (bytes - part.head) / kPackBytes;
          EXPECT(part.end - part.begin + (inside ? 0 : 2) >= whole, say);
        }
      }
    }
  }
}

Piece random_piece(uint64_t most, std::mt19937_64& random) {
  const uint64_t bytes = random() % 5 == 0 ? 0 : random() % (1 + random() % most);
  const size_t src = random() % 3 == 0 ? 0 : random() % 16;
  return {bytes, src, random() % 2 == 0 ? src : random() % 16};
}

/// Tables around the capacities of the kernels' parameters.
CASE(tables) {
  std::mt19937_64 random(seed);
  std::vector<int> counts = {0, 1, 2, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 2048, 3000};
  for (int i = 0; i < 4; ++i) counts.push_back(static_cast<int>(random() % 3001));
  for (const int count : counts) {
    std::vector<Piece> pieces;
    for (int i = 0; i < count; ++i)
      pieces.push_back(random_piece(count < 100 ? 3000 : 200, random));
    if (count > 1) pieces[random() % pieces.size()] = {20 * kChunk + 7, 3, 9};
    copy_pieces(pieces, random);
  }
  copy_pieces(std::vector<Piece>(70, Piece{0, 0, 0}), random);  // nothing to copy, so no launch
}

/// No byte is read before or after a source.
CASE(exact) {
#if defined(FC_SHIM)
  std::mt19937_64 random(seed);
  for (size_t src = 0; src < 16; ++src) {
    for (const uint64_t bytes : {uint64_t{20}, uint64_t{50}, kChunk + 5, 3 * kChunk + 40}) {
      const auto from = std::make_unique<char[]>(src + bytes);
      const auto to = std::make_unique<char[]>(src + bytes + 5);
      const std::vector<char> data = random_bytes(bytes, random);
      std::copy(data.begin(), data.end(), from.get() + src);
#if defined(__SANITIZE_ADDRESS__)
      __asan_poison_memory_region(from.get(), src / 8 * 8);
#endif
      const size_t dst = random() % 5 + src;
      const CopySegment segment{to.get() + dst, from.get() + src, bytes};
      launch_multi_copy(&segment, 1, nullptr);
      EXPECT(std::equal(data.begin(), data.end(), to.get() + dst), bytes, " bytes at ", src);
#if defined(__SANITIZE_ADDRESS__)
      __asan_unpoison_memory_region(from.get(), src / 8 * 8);
#endif
    }
  }
#endif
}

#if defined(FC_SHIM)
void one_kernel(int) {}
void other_kernel(int) {}

/// A grid has the blocks that a device holds at once, and the runtime is asked about it once for
/// each kernel, block size and device.
CASE(grid) {
  const auto say = [] { return concat(shim::occupancy_questions.load(), " questions"); };
  shim::occupancy_questions = 0;
  EXPECT(resident_blocks(one_kernel, 4) == 3 && resident_blocks(one_kernel, 4) == 3, say());
  EXPECT(shim::occupancy_questions == 1, say());
  shim::blocks_per_processor = 2;
  EXPECT(resident_blocks(one_kernel, 4) == 3, "remembered");
  EXPECT(resident_blocks(other_kernel, 4) == 6 && shim::occupancy_questions == 2, say());
  EXPECT(resident_blocks(one_kernel, 2) == 6 && shim::occupancy_questions == 3, say());
  shim::current_device = 1;
  EXPECT(resident_blocks(one_kernel, 4) == 6 && shim::occupancy_questions == 4, say());
  std::vector<char> from(20 * kChunk), to(20 * kChunk);
  const CopySegment segment{to.data(), from.data(), from.size()};
  launch_multi_copy(&segment, 1, nullptr);  // not asked before about this device
  EXPECT(shim::last_launch.blocks == 6, shim::last_launch.blocks, " blocks");
  {
    const GridLimit limit(4);
    launch_multi_copy(&segment, 1, nullptr);
    EXPECT(shim::last_launch.blocks == 4, shim::last_launch.blocks, " blocks");
    const GridLimit none(0);
    launch_multi_copy(&segment, 1, nullptr);
    EXPECT(shim::last_launch.blocks == 6, shim::last_launch.blocks, " blocks");
  }
  shim::blocks_per_processor =
      0;  // as for a kernel that does not fit: its launch must fail, not this
  EXPECT(blocks_for_chunks(other_kernel, 9) == 1, "at least one");
  shim::blocks_per_processor = 1;
  shim::current_device = 0;
}
#endif

CASE(race) {
  std::mt19937_64 random(seed);
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::vector<Piece> pieces = {{9 * kChunk, 0, 0}, {5 * kChunk + 3, 5, 5}, {7 * kChunk, 1, 6}};
    for (int i = 0; i < 80; ++i) pieces.push_back(random_piece(300, random));
    copy_pieces(pieces, random);
  }
}

CASE(refused) {
  ErrorCode code = ErrorCode::kSystem;
  const CopySegment segment{nullptr, nullptr, 0};
  error_of([&] { launch_multi_copy(&segment, -1, nullptr); }, &code);
  EXPECT(code == ErrorCode::kInvalidArgument, "a negative count");
}

CASE(large) {
  if (!kOnDevice) return;
  std::mt19937_64 random(seed);
  copy_pieces({{(uint64_t{1} << 28) + 12345, 0, 0}, {(uint64_t{1} << 27) + 3, 1, 14}}, random);
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
