// Sizes of a segment that fit the limits of its process and of those that map it (ulimit -v, ulimit
// -f). Each process maps the segments of all ranks beside its own, and its other memory counts too:
// half of the address space that is left is divided among them.
#pragma once

#include <cstdint>

namespace fastcomm {

constexpr uint64_t kNoLimit = UINT64_MAX;
constexpr uint64_t kLeastRoom = uint64_t{8} << 20;  // less holds no group: its error says so

/// Bytes that this process may still map; kNoLimit if nothing bounds it.
uint64_t address_space_left();

/// The size of a segment before its peers are known, `most` bytes or less.
uint64_t first_room(uint64_t most);

/// Bytes of this process's address space for each segment of a group of `size` ranks, if `own`
/// bytes are mapped already; kNoLimit if nothing bounds it.
uint64_t room_for_each(int size, uint64_t own);

}  // namespace fastcomm
