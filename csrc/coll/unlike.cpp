#include "coll/unlike.h"

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"

namespace fastcomm {

std::string name_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last == first + 1) last = first;  // "0, 1", not "0-1"
    text += concat(first == 0 ? "" : ", ", ranks[first]);
    if (last != first) text += concat("-", ranks[last]);
    first = last + 1;
  }
  return text;
}

void Told::add(const std::vector<int>& ranks, const std::string& call) {
  constexpr size_t kRoom = sizeof(ControlBlock::reason) / 2 - 3;  // two, "; " and a zero fit
  const std::string one = concat(name_ranks(ranks), " called ", call);
  if (count_ < kShown) text_ += concat(count_ == 0 ? "" : "; ", one);
  if (count_ < 2) brief_ += concat(count_ == 0 ? "" : "; ", without_middle(one, kRoom));
  ++count_;
}

std::string Told::text() const {
  return count_ <= kShown ? text_ : concat(text_, "; and ", count_ - kShown, " more");
}

Unlike tell_unlike(const std::vector<const CallHeader*>& headers,
                   const std::function<std::string(int rank)>& call_of) {
  std::vector<std::vector<int>> alike;  // ranks of each different call, by the first of them
  for (int rank = 0; rank < static_cast<int>(headers.size()); ++rank) {
    if (headers[rank] == nullptr) continue;
    const auto known = std::find_if(alike.begin(), alike.end(), [&](const auto& ranks) {
      return same_call(*headers[ranks[0]], *headers[rank]);
    });
    known == alike.end() ? alike.push_back({rank}) : known->push_back(rank);
  }
  const auto majority = std::find_if(alike.begin(), alike.end(), [&](const auto& ranks) {
    return 2 * ranks.size() > headers.size();
  });
  std::vector<int> odd;
  if (majority != alike.end() && alike.size() > 1) {
    for (auto ranks = alike.begin(); ranks != alike.end(); ++ranks) {
      if (ranks != majority) odd.insert(odd.end(), ranks->begin(), ranks->end());
    }
    std::sort(odd.begin(), odd.end());
    // First an odd call, then the majority's: both are shown even if not all calls are.
    std::rotate(alike.begin(), majority, majority + 1);
    std::swap(alike[0], alike[1]);
  }
  const std::string culprit =
      odd.empty() ? ""
                  : concat(", and ", name_ranks(odd),
                           odd.size() == 1 ? " is the odd one" : " are the odd ones");
  Unlike unlike{{}, odd.empty() ? -1 : odd[0], ""};
  for (const auto& ranks : alike) unlike.calls.add(ranks, call_of(ranks[0]));
  unlike.text = concat("the ranks called different operations", culprit, ": ", unlike.calls.text());
  return unlike;
}

}  // namespace fastcomm
