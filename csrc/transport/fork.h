// Detects a child of fork() whose parent used groups.
//
// Such a child has neither the mappings (MADV_DONTFORK) nor the threads of its parent: every use of
// a group there must end in an error, not in a fault or a hang.
#pragma once

#include "core/error.h"

namespace fastcomm {

/// Called once before the first group of a process.
void watch_for_forks();

bool forked_from_endpoint();

/// Raises Error(kForked) in such a child. `front()` makes the start of the message, and is called
/// only to raise, since every operation comes through here.
template <class Front>
void check_not_forked(const Front& front) {
  if (!forked_from_endpoint()) return;
  throw Error(ErrorCode::kForked,
              front() +
                  "this is a child of fork(): a process group cannot be used here. Start workers "
                  "before init_process_group, with the spawn method, or keep them off the group");
}

}  // namespace fastcomm
