#include "transport/wait.h"

#include "core/env.h"

namespace fastcomm {

WaitPolicy wait_policy(bool oversubscribed) {
  using std::chrono::microseconds;
  // A peer that runs answers within a microsecond or two; one that does not run may be waiting for
  // this very core, where the scheduler has put both: then only a yield lets it go on. A yield
  // costs a fraction of a microsecond where nothing else wants the core, a sleep and its wake 10 to
  // 20. So: a short spin, unless the peer was last seen on this core, then yields, then sleep.
  const int64_t wanted = environment().spin_us;
  const microseconds spin(wanted >= 0 ? wanted : oversubscribed ? 0 : 20);
  return WaitPolicy{spin, microseconds(oversubscribed ? 200 : 500), !oversubscribed};
}

}  // namespace fastcomm
