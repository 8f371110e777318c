#include "transport/wait.h"

#include "core/env.h"

namespace fastcomm {

WaitPolicy wait_policy(bool oversubscribed) {
  using std::chrono::microseconds;
  // A running peer answers within a microsecond or two. A peer that does not run may wait for this
  // very core, if the scheduler has put both there: then only a yield lets it go on. A yield costs
  // a fraction of a microsecond if nothing else wants the core, a sleep and its wake-up between 10
  // and 20. Hence a short spin, unless the peer was last seen on this core, then yields, then
  // sleep.
  const int64_t wanted = environment().spin_us;
  const microseconds spin(wanted >= 0 ? wanted : oversubscribed ? 0 : 20);
  return WaitPolicy{spin, microseconds(oversubscribed ? 200 : 500), !oversubscribed};
}

}  // namespace fastcomm
