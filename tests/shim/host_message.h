// What a message from host to host orders: whoever has read it is ordered after all that its sender's
// host had waited for. The shim does not see sockets and stores, so a message sent over them for the
// sake of an order says so: the sender's text goes with it, and the receiver hands that in.
//
// Flags (shim/shared_memory.h) and handles (shim/ipc.h) need no such text.
#pragma once

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "shim/shared_memory.h"

namespace fastcomm::shim {

/// Any host thread. Throws std::length_error where the workers do not all fit into a clock.
inline std::string host_message() {
  const auto flat = std::make_unique<FlatClock>();
  if (!WideHost::get().now().store(*flat)) {
    throw std::length_error("shim: too many workers for a message's clock");
  }
  return std::string(reinterpret_cast<const char*>(flat->entries),
                     flat->count * sizeof(FlatClock::Entry));
}

/// Any host thread. Throws std::invalid_argument where the text is not from host_message().
inline void host_has_read(const std::string& text) {
  const auto flat = std::make_unique<FlatClock>();
  const size_t count = text.size() / sizeof(FlatClock::Entry);
  if (text.size() % sizeof(FlatClock::Entry) != 0 || count > FlatClock::kMost) {
    throw std::invalid_argument("shim: a message without a clock");
  }
  std::memcpy(flat->entries, text.data(), text.size());
  flat->count = static_cast<uint32_t>(count);
  WideHost::get().saw(*flat);
}

}  // namespace fastcomm::shim
