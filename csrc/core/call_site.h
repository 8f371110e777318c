// The place in the program where a call was made ("train.py:12"), for messages, if
// FASTCOMM_CALL_SITES asks for it. Set once, from bindings/module.cpp.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace fastcomm {

/// Room for one call site in shared memory; a longer one loses its beginning there.
constexpr size_t kSiteBytes = 192;

/// May take the interpreter's lock, so the caller must hold no other. Returns "" if no code of the
/// program is running.
extern std::function<std::string()> g_call_site;

/// The result of g_call_site if call sites are asked for; loses its beginning if it is too long.
std::string call_site();

/// ", at train.py:12", to follow the description of a call; "" for "".
inline std::string at_site(const std::string& site) { return site.empty() ? "" : ", at " + site; }

}  // namespace fastcomm
