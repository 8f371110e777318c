#include "coll/host_layout.h"

#include <algorithm>

#include "core/error.h"
#include "core/numeric.h"
#include "transport/peer_view.h"

namespace fastcomm {

namespace {

/// Adds the largest subtrees of the one over ranks [first, end) whose ranks are all in the list.
void add_trees(const std::vector<int>& ranks, int first, int end, std::vector<RankTree>& trees) {
  const auto from = std::lower_bound(ranks.begin(), ranks.end(), first);
  const auto to = std::lower_bound(ranks.begin(), ranks.end(), end);
  if (from == to) return;
  if (to - from == end - first) {
    trees.push_back({first, end, static_cast<int>(from - ranks.begin())});
    return;
  }
  const int middle = first + tree_left(end - first);
  add_trees(ranks, first, middle, trees);
  add_trees(ranks, middle, end, trees);
}

}  // namespace

uint64_t HostLayout::num_trees() const {
  uint64_t count = 0;
  for (const auto& each : trees) count += each.size();
  return count;
}

bool HostLayout::aligned() const {
  const auto whole = [&](const std::vector<RankTree>& each) {
    return each.size() == 1 && each[0].end - each[0].first == ranks_per_host();
  };
  return std::all_of(trees.begin(), trees.end(), whole);
}

int HostLayout::host_of(int rank) const {
  int host = 0;
  while (!std::binary_search(hosts[host].begin(), hosts[host].end(), rank)) ++host;
  return host;
}

int HostLayout::place_of(int rank) const {
  const std::vector<int>& ranks = hosts[host_of(rank)];
  return static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

HostLayout layout_of(const std::vector<std::string>& shares, int rank) {
  const int size = static_cast<int>(shares.size());
  HostLayout layout;
  for (int one = 0; one < size; ++one) {
    for (int other = 0; other < size; ++other) {
      const bool together = shares[one] == shares[other];
      if ((shares[one][other] == '1') != together) return {};
    }
  }
  for (int each = 0; each < size; ++each) {
    const auto known = std::find_if(layout.hosts.begin(), layout.hosts.end(), [&](const auto& one) {
      return shares[one[0]] == shares[each];
    });
    const auto host = known - layout.hosts.begin();
    if (known == layout.hosts.end()) layout.hosts.emplace_back();
    if (each == rank) {
      layout.own = static_cast<int>(host);
      layout.local = static_cast<int>(layout.hosts[host].size());
    }
    layout.hosts[host].push_back(each);
  }
  for (const std::vector<int>& ranks : layout.hosts) {
    add_trees(ranks, 0, size, layout.trees.emplace_back());
  }
  return layout;
}

std::string why_not_composed(const HostLayout& layout) {
  if (layout.num_hosts() == 0)
    return "who shares memory with whom does not divide the ranks into hosts";
  if (layout.num_hosts() == 1) return "all ranks share memory";
  const int each = layout.ranks_per_host();
  if (layout.num_hosts() > kMaxRanks) return concat("there are more than ", kMaxRanks, " hosts");
  for (const auto& host : layout.hosts) {
    if (static_cast<int>(host.size()) != each) return "the hosts differ in their numbers of ranks";
  }
  constexpr uint64_t kMostTrees = 256;  // as many sources as a kernel takes
  if (layout.num_trees() > kMostTrees) {
    return concat("the order of the ranks would make ", layout.num_trees(), " partial sums, of ",
                  kMostTrees, " at most: number the ranks host by host");
  }
  if (each == 1 && layout.num_hosts() == 2) return "of two ranks, Gloo's sums have the same bits";
  return "";
}

}  // namespace fastcomm
