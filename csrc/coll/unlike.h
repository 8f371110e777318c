// Texts about ranks that called different operations; all ranks get the same text from the same
// headers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "coll/call_header.h"

namespace fastcomm {

/// "rank 3", "ranks 0-2, 5"
std::string name_ranks(const std::vector<int>& ranks);

/// Calls as shown in messages: all of them, up to a number, and a brief form for a control block
/// with the first two. The brief form of a long call keeps its operation and, at its end, its line
/// in the program.
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
  Told calls;  // the first odd one first, then the majority's call
  int odd;     // the first rank unlike the majority's call, -1 if there is no majority

  /// "the ranks called different operations, and rank 2 is the odd one: ..."
  std::string text;
};

/// `headers[rank]` is nullptr if that rank's call is unknown. `call_of(rank)` describes the
/// others'.
Unlike tell_unlike(const std::vector<const CallHeader*>& headers,
                   const std::function<std::string(int rank)>& call_of);

}  // namespace fastcomm
