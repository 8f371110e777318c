// Requests whose tensors are plain memory of the host: put together without copies and without
// anything to hold, for short calls.
#pragma once

#include <optional>

#include "c10d/requests/convert.h"
#include "c10d/requests/request.h"
#include "coll/short_call.h"

namespace fastcomm {

/// Sets the call that a synchronous request comes to; false, with an unspecified call, if it is not
/// one of these, or has a fault: then calls_of() puts it together, or says what is wrong.
bool set_plain_call(const Site& site, const Request& request, Call& call);

/// The same of a sum of `tensors` in place by `op`, or of a barrier, by its parts.
std::optional<ShortCall> short_call_of(OpKind kind, at::TensorList tensors,
                                       const ::c10d::ReduceOp& op);

}  // namespace fastcomm
