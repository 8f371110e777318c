// The records of a job's ranks on this host (core/records.h), kept in a file when a group fails.
#pragma once

#include <cstdint>
#include <string>

namespace fastcomm {

/// Writes the records of this process, and of those that share memory with it, dead ones too, to a
/// file in `folder` whose name has the failed group's `token` and the host's: one rank writes it,
/// and all return its name. `fastcomm trace` reads it. Never takes Python's lock, and waits for
/// nobody. Raises Error(kSystem).
std::string write_records(const std::string& folder, uint64_t token, const std::string& why);

}  // namespace fastcomm
