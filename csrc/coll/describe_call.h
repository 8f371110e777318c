// Calls in words, from the ranks' headers.
#pragma once

#include <string>

#include "coll/call_header.h"

namespace fastcomm {

/// True if the rank's control block holds a detail beside this header.
bool has_detail(const CallHeader& header);

/// "all_reduce(sum, float32, 1024 elements), sequence 7". `detail` may lack its end and its zero
/// byte: at most kDetailBytes are read.
std::string describe_call(const CallHeader& header, const char* detail = "");
/// The same for a notice in a rank's control block, with the place of the call in the program if it
/// is there.
std::string describe_call(const CallNotice& notice);

}  // namespace fastcomm
