// Element types of torch as those of the lower layers.
#pragma once

#include <c10/core/ScalarType.h>

#include "core/types.h"

namespace fastcomm {

/// DType::kOther for a type that is moved as bytes.
DType dtype_of(at::ScalarType type);

}  // namespace fastcomm
