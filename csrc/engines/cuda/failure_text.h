// What a meeting that failed has recorded, in words.
#pragma once

#include <string>

#include "engines/cuda/meeting_place.h"

namespace fastcomm {

struct DeviceFailure {
  std::string text;  // "" if the record says nothing
  int peer;          // the rank at fault, or -1
};

/// "all_reduce(...), sequence 7: rank 0 has waited in vain, rank 2 has not come", as `rank` of `size` says it,
/// which made its call at `site`.
DeviceFailure describe_failure(const MeetingRecord& record, int rank, int size,
                               const std::string& site = "");

}  // namespace fastcomm
