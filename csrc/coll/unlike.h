// What messages tell of ranks that called different operations: all of them make the same of the same headers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "coll/call_header.h"

namespace fastcomm {

/// "rank 3", "ranks 0-2, 5"
std::string name_ranks(const std::vector<int>& ranks);

/// Calls as messages show them: all, up to a number, and in brief, for a control block, the
/// first two: a long one with its operation and, at its end, the line it was made at.
class Told {
 public:
  void add(const std::vector<int>& ranks, const std::string& call);
  std::string text() const;
  const std::string& brief() const { return brief_; }

 private:
  static constexpr size_t kShown = 8;
  std::string text_, brief_;
  size_t count_ = 0;
};

/// Ranks whose headers differ.
struct Unlike {
  Told calls;  // the first odd one comes first, then what most ranks called
  int odd;     // the first rank that called otherwise than most, -1 where no call is most ranks'

  /// "the ranks called different operations, and rank 2 is the odd one: ..."
  std::string text;
};

/// `headers[rank]`; nullptr where it is not known what that rank called. `call_of(rank)` describes the others'.
Unlike tell_unlike(const std::vector<const CallHeader*>& headers,
                   const std::function<std::string(int rank)>& call_of);

}  // namespace fastcomm
