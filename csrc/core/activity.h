// What a process is doing, from its records.
#pragma once

#include <string>

namespace fastcomm {

/// "in barrier, sequence 7, for 3.2 s, sleeping" (the oldest call that is open) or "outside any
/// call for 12.3 s, stopped": what the process whose records are in the file `fd` does now, for
/// messages. "" if that does not tell: the file is -1, or of another version, or has no records.
/// Reads some MB; never waits.
std::string activity_in(int fd);

}  // namespace fastcomm
