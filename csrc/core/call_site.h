// Where in the program a call was made ("train.py:12"), for messages; where FASTCOMM_CALL_SITES asks for
// it. Set once, from bindings/module.cpp.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace fastcomm {

/// Room for one in shared memory; a longer one lacks its beginning there.
constexpr size_t kSiteBytes = 192;

/// May take the interpreter's lock: the caller holds no other. "" where no program's code is running.
extern std::function<std::string()> g_call_site;

/// What it returns, if it is asked for, without the beginning where there is no room.
std::string call_site();

/// ", at train.py:12", behind the description of a call; "" for "".
inline std::string at_site(const std::string& site) { return site.empty() ? "" : ", at " + site; }

}  // namespace fastcomm
