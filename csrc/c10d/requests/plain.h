// Requests whose tensors are plain memory of the host: put together without copies and without
// anything to hold, for short calls.
#pragma once

#include "c10d/requests/convert.h"
#include "c10d/requests/request.h"
#include "coll/call.h"

namespace fastcomm {

/// Sets the call that a synchronous request comes to; false, with an unspecified call, if it is not
/// one of these, or has a fault: then calls_of() puts it together, or says what is wrong.
bool set_plain_call(const Site& site, const Request& request, Call& call);

}  // namespace fastcomm
