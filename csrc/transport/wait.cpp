#include "transport/wait.h"

#include "core/env.h"

namespace fastcomm {

WaitPolicy wait_policy(bool oversubscribed) {
  using std::chrono::microseconds;
  // A sleep and its wake cost 10 to 20 us, a yield to a runnable peer about 1 us; a spin of a few
  // such costs loses little when the peer is late and everything is gained when it is not.
  const int64_t wanted = environment().spin_us;
  const microseconds spin(wanted >= 0 ? wanted : oversubscribed ? 0 : 100);
  return WaitPolicy{spin, microseconds(oversubscribed ? 200 : 500)};
}

}  // namespace fastcomm
