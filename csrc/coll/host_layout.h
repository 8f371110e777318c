// How a group's ranks lie on hosts, and how the hosts' sums make up the group's.
//
// A host is a set of ranks that share memory, found by trial (transport/shm/forming.h): two
// containers of one machine may be two hosts. The group's sum is a fixed balanced binary tree over
// its ranks. A host adds up the subtrees that lie on it, with the bits that the group's sum has
// there; the sum over hosts is the rest of the tree. If the ranks are numbered host by host, and
// each host has a power of two of them, a host is one subtree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fastcomm {

/// Ranks [first, end) are a complete subtree of the group's tree.
struct RankTree {
  int first, end;
  int place;  // of the first among the ranks of its host
};

struct HostLayout {
  /// The ranks of each host, ascending; the hosts in the order of their first ranks.
  std::vector<std::vector<int>> hosts;
  /// The largest subtrees that lie on each host.
  std::vector<std::vector<RankTree>> trees;
  int own = 0;    // this rank's host
  int local = 0;  // its place there

  int num_hosts() const { return static_cast<int>(hosts.size()); }
  int ranks_per_host() const { return static_cast<int>(hosts[0].size()); }
  uint64_t num_trees() const;
  /// True if each host is one subtree, and all are alike.
  bool aligned() const;
  int host_of(int rank) const;
  int place_of(int rank) const;  // among the ranks of its host
  /// The rank in this rank's place on another host, if all hosts have the same number of ranks.
  int counterpart(int host) const { return hosts[host][local]; }
};

/// `shares[a][b]` is '1' if rank a reaches the memory of rank b. A layout without hosts, if these
/// do not tell hosts apart: a reaches b, and b not a, or a third one.
HostLayout layout_of(const std::vector<std::string>& shares, int rank);

/// The reason why operations are not composed of what hosts do; "" if they are: each of at most 64
/// hosts has the same number of ranks, and they have at most 256 subtrees in all. Of two ranks,
/// nothing would be gained.
std::string why_not_composed(const HostLayout& layout);

}  // namespace fastcomm
