// What is written down of a call until it ends: its entry in torch's flight recorder, and its
// record.
#pragma once

#include <exception>

#include "c10d/life/exception.h"
#include "c10d/life/flight_recorder.h"
#include "core/records.h"

namespace fastcomm {

/// By default of nothing. Self-contained, for engines from outside.
struct CallEnd {
  RecordedEntry entry;
  CallRecord record;

  /// The call has ended, in `error` if that is not nullptr.
  void end(const std::exception_ptr& error) const noexcept {
    entry.end(error == nullptr);
    if (record.exists()) {
      record.end(error == nullptr ? records::kWell : records::outcome_of(code_of(error)));
    }
  }
  /// Nobody will know how it ends.
  void let_go() const noexcept { record.end(records::kUnknown); }
};

}  // namespace fastcomm
