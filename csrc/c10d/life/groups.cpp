#include "c10d/life/groups.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "c10d/life/hooks.h"
#include "core/env.h"
#include "core/error.h"
#include "engines/cpu/progress_thread.h"
#include "transport/fork.h"
#include "transport/local/thread_transport.h"
#include "transport/shm/forming.h"
#include "transport/tcp/peer_links.h"

namespace fastcomm {
namespace {

std::atomic<ProgressThread*> g_progress_thread{nullptr};

/// This process's progress thread. Never destroyed: its thread may outlive the static objects.
ProgressThread& progress_thread() {
  static auto* shared = [] {
    g_progress_thread = new ProgressThread(Endpoint::instance().doorbell());
    return g_progress_thread.load();
  }();
  return *shared;
}

/// A group of one rank exchanges nothing; its progress thread never gets work.
ProgressThread& idle_progress_thread() {
  static auto* doorbell = new Doorbell{};
  static auto* shared = new ProgressThread(*doorbell);
  return *shared;
}

/// The groups that this process is in, for the end of its interpreter.
class OpenGroups {
 public:
  void add(const std::shared_ptr<Communicator>& group) {
    std::lock_guard<std::mutex> lock(mutex_);
    groups_.erase(std::remove_if(groups_.begin(), groups_.end(),
                                 [](const auto& known) { return known.expired(); }),
                  groups_.end());
    groups_.push_back(group);
  }
  std::vector<std::shared_ptr<Communicator>> all() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<Communicator>> found;
    for (const auto& known : groups_) {
      if (auto group = known.lock()) found.push_back(std::move(group));
    }
    return found;
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Communicator>> groups_;
};

OpenGroups& open_groups() {
  static auto* shared = new OpenGroups;
  return *shared;
}

SlotSizes sizes_of(const GroupConfig& config) {
  return {config.payload_bytes, config.block_bytes, config.rotation_bytes};
}

size_t scratch_bytes(const GroupConfig& config, int size) {
  return scratch_layout(sizes_of(config), size).total() + rings_bytes(size);
}

/// The peers, or nullptr with the reason in the traits.
std::unique_ptr<Transport> find_peers(Bootstrap& bootstrap, int rank, int size, Deadline deadline,
                                      GroupTraits& traits) {
  const Environment& env = environment();
  traits.size = size;
  const ChosenSizes chosen = choose_slot_sizes(size);
  if (size == 1) {
    traits.native = true;
    traits.transport = "one rank";
    traits.layout = scratch_layout(chosen.sizes, 1);
    return std::move(make_thread_transports(1, 0).front());
  }
  if (size > kMaxRanks) {
    traits.why_not_native = concat("a native group has at most ", kMaxRanks, " ranks");
    return nullptr;
  }
  Endpoint* endpoint = nullptr;
  std::string why_not;
  if (env.transport == "gloo") {
    why_not = "FASTCOMM_TRANSPORT=gloo";
  } else {
    try {
      endpoint = &Endpoint::instance();
    } catch (const Error& error) {
      why_not = error.what();
    }
  }
  const auto& [payload, block, rotation] = chosen.sizes;
  const GroupConfig wanted{payload, block, rotation, static_cast<uint64_t>(chosen.payload_by)};
  auto result =
      make_shm_transport(bootstrap, rank, size, endpoint, why_not, wanted, scratch_bytes, deadline);
  traits.native = result.group != nullptr;
  traits.why_not_native = result.reason;
  traits.layout = scratch_layout(sizes_of(result.config), size);
  traits.payload_by = static_cast<ChosenBy>(result.config.payload_by);
  if (endpoint != nullptr) {
    traits.transport = concat("shared memory (", endpoint->segment().kind(), ")");
  }
  return std::move(result.group);
}

}  // namespace

Formed form_group(Bootstrap& bootstrap, int rank, int size, Deadline deadline) {
  if (forked_from_endpoint()) {
    throw Error(ErrorCode::kForked, concat("[rank ", rank, " of ", size,
                                           "] this is a child of fork(), whose parent had used "
                                           "shared memory: no process group can be "
                                           "formed here. Fork before the parent's first "
                                           "init_process_group, or start the processes with "
                                           "the spawn or forkserver method"));
  }
  Formed formed;
  auto peers = find_peers(bootstrap, rank, size, deadline, formed.traits);
  if (peers == nullptr) return formed;
  formed.group = std::make_shared<Communicator>(
      std::move(peers), formed.traits, size == 1 ? idle_progress_thread() : progress_thread());
  open_groups().add(formed.group);
  return formed;
}

void stop_progress() {
  if (forked_from_endpoint()) return;
  if (auto* thread = g_progress_thread.load()) thread->stop();
  // An interpreter may take seconds to end, and drops its groups late: peers that wait for this
  // rank are told now.
  const std::string failure = g_failure ? g_failure(true) : "";
  const std::string how =
      failure.empty() ? "ended without destroying its process group" : "failed with " + failure;
  for (const auto& group : open_groups().all()) group->leave(how);
  PeerLinks::leave_all(how);
}

}  // namespace fastcomm
