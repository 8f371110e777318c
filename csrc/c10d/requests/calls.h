// A request as calls of a group's rank: checked, with its data in the place that the engine wants.
#pragma once

#include "c10d/requests/prepared.h"

namespace fastcomm {

/// For every request but messages. Raises Error(kInvalidArgument) and Error(kUnsupported) for
/// requests that make no sense: nothing has been sent then.
Calls calls_of(const Site& site, const Request& request);

}  // namespace fastcomm
