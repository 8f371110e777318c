// How the ranks of a group connect their links (transport/tcp/peer_links.h).
#pragma once

#include <string>
#include <vector>

#include "core/clock.h"
#include "transport/bootstrap.h"
#include "transport/fd.h"

namespace fastcomm {

/// A peer with which this rank should have a link.
struct LinkedPeer {
  int rank;
  std::string place;  // "pid 7 on node3"
  Fd fd;              // empty if none came about
};

/// Ranks with which `rank` has links, in order: all others, or, in a large group, those at a
/// distance of a power of two. So each rank is linked with those that link with it.
std::vector<int> linked_ranks(int rank, int size);

/// Collective. Each rank publishes its addresses; of two, the higher one tries all of the lower
/// one's at once, and keeps the first at which that rank answers. Waits at most `patience` once all
/// have published theirs. Raises Error(kTimeout) if one has not by `deadline`, Error(kSystem).
std::vector<LinkedPeer> connect_links(Bootstrap& store, int rank, int size, Deadline deadline,
                                      Milliseconds patience);

}  // namespace fastcomm
