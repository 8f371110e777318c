// What waiting and ending ask of Python. Set once, from bindings/module.cpp.
#pragma once

#include <functional>
#include <string>

namespace fastcomm {

/// Called now and then while a caller waits; may throw.
inline std::function<void()> g_interrupt_check;

/// The type and first line of the exception because of which the calling thread leaves a group or, at
/// the end of the program, of the one that ended it; "" if there is none.
inline std::function<std::string(bool at_the_end)> g_failure;

}  // namespace fastcomm
