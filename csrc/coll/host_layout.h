// How a group's ranks lie on hosts, and whether the hosts' sums make up the group's.
//
// A host is a set of ranks that share memory, found by trial (transport/shm/forming.h): two
// containers of one machine may be two hosts. The group's sum is a fixed balanced binary tree over
// its ranks. A host whose ranks are a complete subtree adds them up alone, with the bits that the
// group's sum has there; then the sum over hosts is the upper part of the tree.
#pragma once

#include <string>
#include <vector>

namespace fastcomm {

struct HostLayout {
  /// The ranks of each host, ascending; the hosts in the order of their first ranks.
  std::vector<std::vector<int>> hosts;
  int own = 0;    // this rank's host
  int local = 0;  // its place there

  int num_hosts() const { return static_cast<int>(hosts.size()); }
  int ranks_per_host() const { return static_cast<int>(hosts[0].size()); }
  /// Where a rank lies, if all hosts have the same number of ranks, one after the other.
  int host_of(int rank) const { return rank / ranks_per_host(); }
  int place_of(int rank) const { return rank % ranks_per_host(); }
  /// The rank in this rank's place on another host.
  int counterpart(int host) const { return hosts[host][local]; }
};

/// `shares[a][b]` is '1' if rank a reaches the memory of rank b. A layout without hosts, if these
/// do not tell hosts apart: a reaches b, and b not a, or a third one.
HostLayout layout_of(const std::vector<std::string>& shares, int rank);

/// The reason why sums over the hosts do not make up the group's, with the order of ranks that
/// would help, if there is one; "" if they do: each host has the same number of ranks, a power of
/// two, one after the other. Of two ranks, nothing would be gained.
std::string why_not_composed(const HostLayout& layout);

}  // namespace fastcomm
