// Copy of a run of bytes by one block of threads, for the batched copy and short operations.
//
// All threads of the block call with the same arguments, and a thread's part follows from its
// index; there is no barrier in here. Copies use packs of 16 bytes if both ends can be aligned to
// one at once. If not, the destination is aligned, and each pack is cut out of the two aligned
// packs of the source that contain it: twice the loads, of which the second hits the first-level
// cache. Outside of [src, src + bytes) only the bytes that the caller allows are read: with none,
// the first and the last pack go byte by byte.
//
// Memory ordering: none of its own. Loads are plain: the read-only path promises that nobody writes
// the memory while the kernel runs, which a schedule's slots break. For the batched copy the
// promise would hold, but gains nothing, since both paths use the same cache.
#pragma once

#include <cstdint>

#include "core/hd.h"
#include "kernels/cuda_api.h"

namespace fastcomm {

constexpr int kPackBytes = 16;
constexpr int kPacksInFlight = 4;  // loads of a thread before its first store: hides latency

FC_HD uintptr_t address_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

/// Bytes from `pointer` up to the next pack.
FC_HD uint64_t to_next_pack(const void* pointer) { return -address_of(pointer) % kPackBytes; }

/// Bytes [begin, end), one by one: the edges of a copy.
FC_DEVICE void copy_bytes(char* dst, const char* src, uint64_t begin, uint64_t end) {
  for (uint64_t i = begin + threadIdx.x; i < end; i += blockDim.x) dst[i] = src[i];
}

/// Packs, all aligned.
FC_DEVICE void copy_packs(char* dst, const char* src, uint64_t count) {
  uint4* to = reinterpret_cast<uint4*>(dst);
  const uint4* from = reinterpret_cast<const uint4*>(src);
  const uint64_t width = blockDim.x;
  uint64_t i = threadIdx.x;
  for (; i + (kPacksInFlight - 1) * width < count; i += kPacksInFlight * width) {
    uint4 packs[kPacksInFlight];
    FC_UNROLL
    for (int k = 0; k < kPacksInFlight; ++k) packs[k] = from[i + k * width];
    FC_UNROLL
    for (int k = 0; k < kPacksInFlight; ++k) to[i + k * width] = packs[k];
  }
  for (; i < count; i += width) to[i] = from[i];
}

/// The 16 bytes that start in byte 4 * kWord + bits / 8 of the 32 bytes (low, high).
template <int kWord>
FC_HD uint4 pack_between(const uint4& low, const uint4& high, uint32_t bits) {
  const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  uint4 pack;
  pack.x = funnel_right(words[kWord], words[kWord + 1], bits);
  pack.y = funnel_right(words[kWord + 1], words[kWord + 2], bits);
  pack.z = funnel_right(words[kWord + 2], words[kWord + 3], bits);
  pack.w = funnel_right(words[kWord + 3], words[kWord + 4], bits);
  return pack;
}

/// The 16 bytes that start `shift` bytes into the 32 bytes (low, high); shift < 16 is known at run
/// time. Words move by two, by one and by bits, since an array with an index known at run time
/// would lie in local memory.
FC_DEVICE uint4 pack_at(const uint4& low, const uint4& high, uint32_t shift) {
  uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  FC_UNROLL
  for (int i = 0; i < 6; ++i) words[i] = (shift & 8) != 0 ? words[i + 2] : words[i];
  FC_UNROLL
  for (int i = 0; i < 5; ++i) words[i] = (shift & 4) != 0 ? words[i + 1] : words[i];
  const uint4 first = {words[0], words[1], words[2], words[3]};
  const uint4 second = {words[4], 0, 0, 0};
  return pack_between<0>(first, second, shift % sizeof(uint32_t) * 8);
}

/// to[i] = the pack that starts 4 * kWord + bits / 8 bytes into from[i], for i in [begin, end).
template <int kWord>
FC_DEVICE void copy_shifted_packs(uint4* to, const uint4* from, uint64_t begin, uint64_t end,
                                  uint32_t bits) {
  constexpr int kInFlight = kPacksInFlight / 2;
  const uint64_t width = blockDim.x;
  uint64_t i = begin + threadIdx.x;
  for (; i + (kInFlight - 1) * width < end; i += kInFlight * width) {
    uint4 low[kInFlight], high[kInFlight];
    FC_UNROLL
    for (int k = 0; k < kInFlight; ++k) {
      low[k] = from[i + k * width];
      high[k] = from[i + k * width + 1];
    }
    FC_UNROLL
    for (int k = 0; k < kInFlight; ++k) {
      to[i + k * width] = pack_between<kWord>(low[k], high[k], bits);
    }
  }
  for (; i < end; i += width) to[i] = pack_between<kWord>(from[i], from[i + 1], bits);
}

/// Bytes before and after a source that may be read too.
struct Margins {
  uint64_t before = 0;
  uint64_t behind = 0;
};

/// Packs of the destination that a copy between ends of different alignment cuts out of the
/// source's: [begin, end), counted from the destination's first. The bytes around them go one by
/// one.
struct ShiftedPacks {
  uint64_t head;   // bytes of the destination before its first pack
  uint64_t shift;  // from a pack of the source to the byte that goes to dst + head; 1 to 15
  uint64_t begin, end;

  FC_HD ShiftedPacks(const char* dst, const char* src, uint64_t bytes, const Margins& around) {
    head = to_next_pack(dst);
    if (head > bytes) head = bytes;
    shift = address_of(src + head) % kPackBytes;
    // Both source packs of a pack must lie within the readable bytes.
    begin = head + around.before >= shift ? 0 : 1;
    const uint64_t wanted = (bytes - head) / kPackBytes + 1;  // source packs: one more than packs
    uint64_t there = (shift + bytes - head + around.behind) / kPackBytes;
    if (there > wanted) there = wanted;
    end = there > begin ? there - 1 : begin;
  }
};

/// The copy between ends that cannot be aligned to a pack at once. Not inlined: it would cost the
/// common path registers.
FC_DEVICE_COLD void copy_shifted(char* dst, const char* src, uint64_t bytes, Margins around) {
  dst = global(dst);
  src = global(src);
  const ShiftedPacks part(dst, src, bytes, around);
  const uint64_t shift = part.shift, begin = part.begin, end = part.end;
  if (begin == end) return copy_bytes(dst, src, 0, bytes);
  const uint4* from = reinterpret_cast<const uint4*>(src + part.head - shift);
  uint4* to = reinterpret_cast<uint4*>(dst + part.head);
  copy_bytes(dst, src, 0, part.head + begin * kPackBytes);
  copy_bytes(dst, src, part.head + end * kPackBytes, bytes);
  const uint32_t bits = static_cast<uint32_t>(shift % sizeof(uint32_t)) * 8;
  switch (shift / sizeof(uint32_t)) {
    case 0:
      return copy_shifted_packs<0>(to, from, begin, end, bits);
    case 1:
      return copy_shifted_packs<1>(to, from, begin, end, bits);
    case 2:
      return copy_shifted_packs<2>(to, from, begin, end, bits);
    default:
      return copy_shifted_packs<3>(to, from, begin, end, bits);
  }
}

/// Copies `bytes` from `src` to `dst`, which do not overlap.
FC_DEVICE void copy_by_block(char* dst, const char* src, uint64_t bytes, Margins around = {}) {
  if ((address_of(dst) ^ address_of(src)) % kPackBytes != 0) {
    return copy_shifted(dst, src, bytes, around);
  }
  dst = global(dst);
  src = global(src);
  uint64_t head = to_next_pack(dst);
  if (head > bytes) head = bytes;
  const uint64_t packs = (bytes - head) / kPackBytes;
  copy_bytes(dst, src, 0, head);
  copy_bytes(dst, src, head + packs * kPackBytes, bytes);
  copy_packs(dst + head, src + head, packs);
}

}  // namespace fastcomm
