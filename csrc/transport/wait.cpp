#include "transport/wait.h"

#include "core/env.h"

namespace fastcomm {

WaitPolicy wait_policy(bool oversubscribed) {
  using std::chrono::microseconds;
  // A running peer that is in step answers within microseconds; between two short messages each
  // rank works for some tens or hundreds. A yield costs a fraction of a microsecond if nothing else
  // wants the core; if another process does, it keeps the core for its whole slice, some 4 ms,
  // whatever arrives meanwhile. So a rank that has a core to itself, or shares it with strangers,
  // spins for longer than ranks in step are apart. But a peer that does not run may wait for this
  // very core, if the scheduler has put both there: then only a yield lets it go on. Hence no spin
  // if the peer was last seen on this core; else a spin, then yields, then sleep, which costs 10
  // to 20 with its wake-up. benchmarks/wait_cost.py measures all of it.
  const int64_t wanted = environment().spin_us;
  const microseconds spin(wanted >= 0 ? wanted : oversubscribed ? 0 : 300);
  return WaitPolicy{spin, microseconds(200), !oversubscribed};
}

}  // namespace fastcomm
