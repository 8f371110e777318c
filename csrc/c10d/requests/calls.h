// What a request comes to, for the ranks of a group: checked, with its data where the engine wants it.
#pragma once

#include "c10d/requests/prepared.h"

namespace fastcomm {

/// For every request but messages. Raises Error(kInvalidArgument) and Error(kUnsupported) for what makes no sense:
/// nothing has been sent then.
Calls calls_of(const Site& site, const Request& request);

}  // namespace fastcomm
