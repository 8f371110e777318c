// Calls from waits and ends to Python. Set once, from bindings/module.cpp.
#pragma once

#include <functional>
#include <string>

namespace fastcomm {

/// Called now and then while a caller waits; may throw.
inline std::function<void()> g_interrupt_check;

/// The type and first line of the exception that makes the calling thread leave a group or, at the
/// end of the program, of the one that ended it; "" if there is none.
inline std::function<std::string(bool at_the_end)> g_failure;

}  // namespace fastcomm
