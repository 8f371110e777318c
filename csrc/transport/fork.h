// Whether this process is a child of fork() whose parent used groups.
//
// Such a child has neither the mappings (MADV_DONTFORK) nor the threads of its parent: every use of
// a group there must end in an error, not in a fault or a hang.
#pragma once

namespace fastcomm {

/// Called once before the first group of a process.
void watch_for_forks();

bool forked_from_endpoint();

}  // namespace fastcomm
