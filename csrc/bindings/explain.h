// Which path a call takes, and why, as Python asks for it.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "c10d/edge/backend.h"

namespace fastcomm {

/// FastcommBackend.explain() for a group; explain() for one that does not exist; operations(): the names of
/// all operations.
void bind_explain(pybind11::module_& module,
                  pybind11::class_<FastcommBackend, c10::intrusive_ptr<FastcommBackend>,
                                   ::c10d::Backend>& backend);

}  // namespace fastcomm
