// What a meeting that failed has recorded, in words.
#pragma once

#include <string>

#include "engines/cuda/meeting.h"

namespace fastcomm {

/// "rank 2 has not come to all_reduce(...), sequence 7", as `rank` says it; "" if the record says nothing.
std::string describe_failure(const MeetingRecord& record, int rank);

}  // namespace fastcomm
