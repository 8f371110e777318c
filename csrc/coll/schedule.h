// Schedules, and the way in which the executor (kernels/span_cpu.h) drives them.
//
// A schedule determines which rank reads which span from which rank in which step. A step is
//
//     wait     until the peers in wait_for(step) have published `step` steps
//     run      copy_span and reduce_span, on memory that the wait made safe
//     publish  that this rank has finished the step (not after the last one)
//
// so a progress thread can leave a schedule before any step and come back (run_steps). The step is
// the unit because nothing else may block.
//
// A Schedule has
//     uint64_t payload_bytes() const          bytes given by this rank in one step; else kInBlocks
//     uint32_t steps() const                  may change in step 1, once, to the number agreed by
//                                             all
//     WaitFor wait_for(uint32_t step) const   step >= 1
//     void run(CpuExecutor&, uint32_t step) const
//
// Memory ordering. publish is a release store of this rank's flag, arrived an acquire load of the
// peers' flags: a peer's writes in steps before the awaited one happen before this rank's work
// after the wait. The same wait carries the other direction: a rank that has published step k has
// finished reading in its steps up to k, so a slot that peers read in step k may be rewritten by
// its owner after a wait for k. Both arguments need all ranks of the wait set, and nothing else.
//
// Numbering. Flags never go back: a schedule of S steps publishes S - 1 times, from `base` on, and
// the next operation starts at base + S - 1 on every rank. S is at least 2, and known once step 1
// has run: by then the ranks have read each other's publications of step 0. The last step needs no
// publication: the first wait of the next operation covers it (transport/control_block.h).
#pragma once

#include <cstdint>

#include "kernels/span_cpu.h"
#include "transport/peer_view.h"

namespace fastcomm {

/// The payload_bytes() of a payload that goes through slots in blocks.
constexpr uint64_t kInBlocks = UINT64_MAX;

/// Runs steps until the schedule is done (true) or a peer is not there yet (false). `step` is the
/// state to come back with. `checked(step)` is called once a wait is over, before the step runs,
/// and returns true if it shall run: the caller may go on with another schedule.
template <class Schedule, class Checked>
bool run_steps(const Schedule& schedule, CpuExecutor& executor, uint32_t base, uint32_t& step,
               const Checked& checked) {
  uint32_t steps = schedule.steps();
  while (step < steps) {
    if (step > 0) {
      const WaitFor wait = schedule.wait_for(step);
      if (!executor.arrived(wait, base + step)) return false;
      if (!checked(step)) return false;
    }
    schedule.run(executor, step);
    if (step == 1) steps = schedule.steps();
    ++step;
    if (step < steps) executor.publish(base + step);
  }
  return true;
}

}  // namespace fastcomm
