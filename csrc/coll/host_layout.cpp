#include "coll/host_layout.h"

#include <algorithm>

#include "core/error.h"
#include "transport/peer_view.h"

namespace fastcomm {

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
  return layout;
}

std::string why_not_composed(const HostLayout& layout) {
  if (layout.num_hosts() == 0)
    return "who shares memory with whom does not divide the ranks into hosts";
  if (layout.num_hosts() == 1) return "all ranks share memory";
  const int each = layout.ranks_per_host();
  bool alike = true, ordered = true;
  int next = 0;
  for (const auto& host : layout.hosts) {
    alike = alike && static_cast<int>(host.size()) == each;
    for (const int rank : host) ordered = ordered && rank == next++;
  }
  if (layout.num_hosts() > kMaxRanks) return concat("there are more than ", kMaxRanks, " hosts");
  if (!alike) return "the hosts differ in their numbers of ranks";
  if (each == 1 && layout.num_hosts() == 2) return "of two ranks, Gloo's sums have the same bits";
  if ((each & (each - 1)) != 0) {
    return concat("each host has ", each, " ranks, which is no power of two");
  }
  if (!ordered) {
    return concat("ranks of different hosts alternate: give the first ", each,
                  " ranks to one host, the next ", each, " to another, and so on");
  }
  return "";
}

}  // namespace fastcomm
