// Requests as records (core/records.h).
#pragma once

#include <string>
#include <vector>

#include "c10d/engines/engine.h"
#include "coll/short_call.h"
#include "core/records.h"

namespace fastcomm {

/// Makes the file of this process's records, if it is to have one: before the first group is
/// formed, since peers are handed it then.
void open_records();

/// A group's place in the records of this process, as long as it lives. Thread-safe.
class RecordsOfGroup {
 public:
  /// None: nothing is recorded.
  RecordsOfGroup() = default;
  /// `token` is the group's, on all of its ranks; `label` begins its warnings.
  RecordsOfGroup(int rank, int size, uint64_t token, const std::string& label,
                 const std::vector<uint64_t>& members);
  RecordsOfGroup(RecordsOfGroup&& other) noexcept { *this = std::move(other); }
  RecordsOfGroup& operator=(RecordsOfGroup&& other) noexcept;
  ~RecordsOfGroup() { close(); }

  /// A call that `engine` carries out. Its group has these continuations.
  CallRecord begin(const Request& request, const Engine& engine,
                   const Continuations::Ptr& continuations) const;
  /// The same of a short call on elements of `type`, outside of continuations.
  CallRecord begin(const ShortCall& call, at::ScalarType type, const Engine& engine) const;
  /// The group has been left. Idempotent.
  void close() noexcept;

 private:
  Records::AboutCall about(OpKind kind, const Engine& engine) const;

  Records* records_ = nullptr;
  Records::Group group_;
  bool is_open_ = false;
};

}  // namespace fastcomm
