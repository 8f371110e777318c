// How a group whose ranks share no memory gets its links (transport/tcp/peer_links.h).
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/clock.h"
#include "transport/tcp/peer_links.h"

namespace fastcomm {

/// Collective. Warns on standard error, with `label` in front, where a link could not be made.
/// Raises Error(kTimeout) if a rank does not come, Error(kSystem).
std::shared_ptr<PeerLinks> form_links(int rank, int size, Milliseconds timeout,
                                      const c10::intrusive_ptr<::c10d::Store>& store,
                                      const std::string& label);

}  // namespace fastcomm
