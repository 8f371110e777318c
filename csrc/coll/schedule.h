// What a schedule is, and how an executor drives it.
//
// A schedule says who reads which span from whom in which step. It is written once, as a host and
// device template; a step is
//
//     wait     until the peers in wait_for(step) have published `step` steps
//     run      copy_span and reduce_span, on memory that the wait made safe
//     publish  that this rank has finished the step (not after the last one)
//
// so a CPU progress thread can leave a schedule before any step and come back (run_steps), and a CUDA
// block can run it straight through (run_all). The step is the unit because nothing else may block.
//
// A Schedule has
//     uint32_t steps() const                             may change in step 1, once, to what all agree on
//     WaitFor wait_for(uint32_t step) const              step >= 1
//     template <class Executor> void run(Executor&, uint32_t step) const
// and an Executor has
//     copy_span(dst, src, bytes)
//     stage_span(dst, src, bytes, where)    the same, to where peers read it: a slot, or a tensor of theirs
//     reduce_span(dst, second_dst or nullptr, sources, count, element_size, where)    sources(j): where rank j's lies;
//                                                                              second_dst: where peers read it
//     publish(step_count)
//     bool arrived(WaitFor, target)    CPU: looks once    CUDA: waits, false after its bound
//
// Memory ordering. publish is a release store of this rank's flag, arrived an acquire load of the
// peers' flags: what a peer wrote in steps before the awaited one happens before what this rank
// does after the wait. The same wait carries the other direction: a rank that has published step k
// has finished reading in its steps up to k, so a slot that peers read in step k may be rewritten
// by its owner after a wait for k. Both arguments need all ranks of the wait set, and nothing else.
//
// Numbering. Flags never go back: a schedule of S steps publishes S - 1 times, from `base` on, and
// the next operation starts at base + S - 1 on every rank. S is at least 2, and known once step 1 has
// run: by then the ranks have read what each of them published in step 0. The last step needs no publication: the
// first wait of the next operation says the same (transport/control_block.h).
#pragma once

#include <cstdint>

#include "core/hd.h"
#include "transport/peer_view.h"

namespace fastcomm {

/// Runs steps until the schedule is done (true) or a peer is not there yet (false). `step` is the
/// state to come back with; `checked(step)` is called once a wait is over, before the step runs, and
/// answers whether it shall run: the caller may go on with another schedule.
template <class Schedule, class Executor, class Checked>
FC_HD bool run_steps(const Schedule& schedule, Executor& executor, uint32_t base, uint32_t& step,
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

/// The same for an executor whose arrived() blocks: false if a wait ran into its bound.
template <class Schedule, class Executor>
FC_HD bool run_all(const Schedule& schedule, Executor& executor, uint32_t base) {
  uint32_t step = 0;
  return run_steps(schedule, executor, base, step, [](uint32_t) { return true; });
}

}  // namespace fastcomm
