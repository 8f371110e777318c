// The record of a failed meeting, in words.
#pragma once

#include <string>

#include "engines/cuda/meeting_place.h"

namespace fastcomm {

struct DeviceFailure {
  std::string text;  // "" if the record has no failure
  int peer;          // the rank at fault, or -1
};

/// "all_reduce(...), sequence 7: rank 0 has waited in vain, rank 2 has not come", from the view of
/// `rank` of `size`, which made its call at `site`.
DeviceFailure describe_failure(const MeetingRecord& record, int rank, int size,
                               const std::string& site = "");

}  // namespace fastcomm
