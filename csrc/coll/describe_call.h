// Calls in words, from what ranks say of them.
#pragma once

#include <string>

#include "coll/call_header.h"

namespace fastcomm {

/// Whether the rank's control block holds a detail beside this header.
bool has_detail(const CallHeader& header);

/// "all_reduce(sum, float32, 1024 elements), sequence 7". `detail` may lack its end and its zero
/// byte: at most kDetailBytes are read.
std::string describe_call(const CallHeader& header, const char* detail = "");
/// The same of what lies in a rank's control block, and where the program called it, if it says so.
std::string describe_call(const CallNotice& notice);

}  // namespace fastcomm
