// The native groups of this process: formed over a c10d store, driven by one progress thread, and
// left at the latest when the interpreter ends.
#pragma once

#include <memory>

#include "coll/host_layout.h"
#include "coll/host_thresholds.h"
#include "core/clock.h"
#include "engines/cpu/communicator.h"
#include "transport/bootstrap.h"

namespace fastcomm {

/// The ranks of this rank's host, in a group over several.
struct HostRanks {
  std::shared_ptr<Communicator> group;  // nullptr: there is no such group, on any host
  HostLayout layout;
  std::string why_not;        // there is none, the same on every rank
  HostThresholds thresholds;  // likewise; rank 0's
};

struct Formed {
  std::shared_ptr<Communicator> group;  // nullptr if the ranks do not share memory
  GroupTraits traits;                   // why_not_native has the reason
  uint64_t token = 0;                   // the same on all ranks, and of no other group
  HostRanks host;                       // else
};

/// Collective: returns once all ranks have found out whether they share memory. Raises Error.
Formed form_group(Bootstrap& bootstrap, int rank, int size, Deadline deadline);

/// The ranks of this rank's host once more, in a group of `size` ranks over several. Collective
/// among them. Raises Error.
std::shared_ptr<Communicator> form_host_again(Bootstrap& bootstrap, const HostLayout& layout,
                                              int size, Deadline deadline);

/// Stops the progress thread and leaves every group. Called without the GIL, at the end of the
/// interpreter.
void stop_progress();

}  // namespace fastcomm
