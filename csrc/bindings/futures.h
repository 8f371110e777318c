// Works and futures as Python sees them.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "c10d/lane.h"

namespace fastcomm {

/// Makes them known: NativeWork, PeerWork and StockWork, whose get_future() returns a Future of ours, and
/// future_of(). After torch.distributed.
void bind_futures(pybind11::module_& module);

/// A Python function of a lane's name as what makes its stock engine. Callable and destructible without
/// the GIL.
Lanes::MakeNamedStock stock_maker(pybind11::function make);

}  // namespace fastcomm
