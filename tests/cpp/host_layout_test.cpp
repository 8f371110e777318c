// How ranks lie on hosts, and which placements compose (coll/host_layout.h).
//
//   host_layout_test [CASE [SEED]]
#include "coll/host_layout.h"

#include "check.h"

namespace fastcomm::testing {
namespace {

/// `hosts[rank]` names the rank's host.
std::vector<std::string> masks(const std::string& hosts) {
  std::vector<std::string> all;
  for (const char one : hosts) {
    std::string mask;
    for (const char other : hosts) mask += one == other ? '1' : '0';
    all.push_back(mask);
  }
  return all;
}

std::string why_not(const std::string& hosts) {
  return why_not_composed(layout_of(masks(hosts), 0));
}

CASE(placements) {
  for (const char* good : {"abab", "abba", "aaabbb", "aabb", "aaaabbbb", "aabbccdd", "aabbcc",
                           "bbaa", "abc", "abcd"}) {
    EXPECT(why_not(good).empty(), good, ": ", why_not(good));
  }
  EXPECT(why_not("aab").find("numbers of ranks") != std::string::npos);
  EXPECT(why_not("ab").find("Gloo's sums have the same bits") != std::string::npos);
  std::string many;
  for (int host = 0; host < 65; ++host) many += static_cast<char>(33 + host);
  EXPECT(why_not(many.substr(1)).empty());
  EXPECT(why_not(many).find("more than 64 hosts") != std::string::npos);
  std::string alternate;
  for (int rank = 0; rank < 258; ++rank) alternate += "ab"[rank % 2];
  EXPECT(why_not(alternate).find("258 partial sums") != std::string::npos);
  EXPECT(why_not(alternate.substr(2)).empty());
  EXPECT(why_not("aaaa").find("all ranks share") != std::string::npos);
}

CASE(places) {
  const auto all = masks("aabbcc");
  const HostLayout layout = layout_of(all, 3);
  EXPECT(layout.num_hosts() == 3 && layout.ranks_per_host() == 2);
  EXPECT(layout.own == 1 && layout.local == 1);
  EXPECT(layout.counterpart(0) == 1 && layout.counterpart(2) == 5);
  const std::vector<std::vector<int>> hosts{{0, 1}, {2, 3}, {4, 5}};
  EXPECT(layout.hosts == hosts);
}

/// The largest subtrees on a host, as "first-end@place".
std::string trees_of(const std::string& hosts, size_t host) {
  const HostLayout layout = layout_of(masks(hosts), 0);
  std::string text;
  for (const RankTree& tree : layout.trees[host]) {
    text += concat(text.empty() ? "" : " ", tree.first, "-", tree.end, "@", tree.place);
  }
  return text;
}

CASE(subtrees) {
  EXPECT(trees_of("aabb", 1) == "2-4@0");
  EXPECT(trees_of("abab", 1) == "1-2@0 3-4@1");
  EXPECT(trees_of("aaabbb", 0) == "0-2@0 2-3@2");
  EXPECT(trees_of("aaabbb", 1) == "3-4@0 4-6@1");
  EXPECT(trees_of("abbbbaab", 1) == "1-2@0 2-4@1 4-5@3 7-8@4");
  for (const char* one : {"aabb", "aabbcc", "abc", "aaaabbbb"}) {
    EXPECT(layout_of(masks(one), 0).aligned(), one);
  }
  for (const char* one : {"abab", "aaabbb", "abba"}) {
    EXPECT(!layout_of(masks(one), 0).aligned(), one);
  }
  const HostLayout layout = layout_of(masks("abba"), 2);
  EXPECT(layout.host_of(3) == 0 && layout.place_of(3) == 1 && layout.place_of(2) == 1);
  EXPECT(layout.counterpart(0) == 3);
}

/// Memory that is reached in one direction, or by some of a host's ranks, makes no hosts.
CASE(oddities) {
  for (const auto& [one, other] : {std::pair(0, 2), std::pair(2, 0), std::pair(0, 1)}) {
    auto all = masks("aabb");
    char& reached = all[static_cast<size_t>(one)][static_cast<size_t>(other)];
    reached = reached == '1' ? '0' : '1';
    const HostLayout layout = layout_of(all, 0);
    EXPECT(layout.hosts.empty());
    EXPECT(!why_not_composed(layout).empty());
  }
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
