// The native groups of this process: how they are formed over a c10d store, the progress thread that
// drives them all, and their end where the interpreter ends first.
#pragma once

#include <memory>

#include "core/clock.h"
#include "engines/cpu/communicator.h"
#include "transport/bootstrap.h"

namespace fastcomm {

struct Formed {
  std::shared_ptr<Communicator> group;  // nullptr where the ranks do not share memory
  GroupTraits traits;                   // with the reason
};

/// Collective: returns once all ranks have found out whether they share memory. Raises Error.
Formed form_group(Bootstrap& bootstrap, int rank, int size, Deadline deadline);

/// Stops what runs by itself in this process, at the end of the program, and leaves every
/// group. Call it without the GIL.
void stop_progress();

}  // namespace fastcomm
