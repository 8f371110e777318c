#include "c10d/life/groups.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>
#include <sstream>
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

/// A part of a store.
class PartOfStore final : public Bootstrap {
 public:
  PartOfStore(Bootstrap& whole, std::string prefix) : whole_(whole), prefix_(std::move(prefix)) {
    label = whole.label;
  }
  void set(const std::string& key, const std::string& value) override {
    whole_.set(prefix_ + key, value);
  }
  bool has(const std::string& key) override { return whole_.has(prefix_ + key); }
  std::string get(const std::string& key, Deadline deadline) override {
    return whole_.get(prefix_ + key, deadline);
  }

 private:
  Bootstrap& whole_;
  const std::string prefix_;
};

struct Found {
  std::unique_ptr<Transport> peers;  // or nullptr, with the reason in the traits
  std::vector<std::string> shares;   // then: who shares memory
  uint64_t token = 0;                // of the attempt
};

Found find_peers(Bootstrap& bootstrap, int rank, int size, Deadline deadline, GroupTraits& traits) {
  const Environment& env = environment();
  traits.size = size;
  const ChosenSizes chosen = choose_slot_sizes(size);
  if (size == 1) {
    traits.native = true;
    traits.transport = "one rank";
    traits.layout = scratch_layout(chosen.sizes, 1);
    return {std::move(make_thread_transports(1, 0).front()), {}, random_bits()};
  }
  if (size > kMaxRanks) {
    traits.why_not_native = concat("a native group has at most ", kMaxRanks, " ranks");
    return {};
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
  return {std::move(result.group), std::move(result.shares), result.nonce};
}

std::shared_ptr<Communicator> opened(std::unique_ptr<Transport> peers, const GroupTraits& traits) {
  ProgressThread& driven_by = peers->size() == 1 ? idle_progress_thread() : progress_thread();
  auto group = std::make_shared<Communicator>(std::move(peers), traits, driven_by);
  open_groups().add(group);
  return group;
}

/// What all ranks say, the same on all of them; without line ends. `token` is a number of theirs
/// alone. Collective.
std::vector<std::string> told_by_all(Bootstrap& part, int rank, int size, std::string own,
                                     Deadline deadline, uint64_t& token) {
  std::replace(own.begin(), own.end(), '\n', ' ');
  token = agree(part, rank, size, "", deadline).nonce;
  const std::string nonce = hex(token);
  const auto key = [&](int each) { return concat(nonce, "/", each); };
  std::vector<std::string> told;
  if (rank != 0) {
    part.set(key(rank), own);
  } else {  // one rank reads them all, lest every rank does
    std::string all;
    for (int each = 0; each < size; ++each) {
      all += (each == 0 ? own : part.get(key(each), deadline)) + "\n";
    }
    part.set(concat(nonce, "/all"), all);
  }
  std::istringstream all(part.get(concat(nonce, "/all"), deadline));
  for (std::string line; std::getline(all, line);) told.push_back(line);
  return told;
}

/// What ranks that can share memory have in common: the kernel, and the network of its sockets.
/// Empty if this rank shares none; of its own if it does not know.
std::string presumed_host(int rank) {
  if (environment().transport == "gloo") return "";
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char network[64] = {};
  const ssize_t bytes = readlink("/proc/self/ns/net", network, sizeof(network) - 1);
  return boot.empty() || bytes <= 0 ? concat("rank ", rank) : concat(boot, " ", network);
}

/// For a group of so many ranks that not all of them can try each other's memory: who should share
/// it, as in find_peers(). Each host tries then. Empty if a rank shares none, with the reason.
/// Collective; of the same result on every rank.
std::vector<std::string> presumed_shares(Bootstrap& bootstrap, int rank, int size,
                                         Deadline deadline, std::string& why_not, uint64_t& token) {
  PartOfStore part(bootstrap, "presumed/");
  const auto hosts = told_by_all(part, rank, size, presumed_host(rank), deadline, token);
  std::vector<std::string> shares;
  for (int each = 0; each < size; ++each) {
    if (hosts[each].empty()) {
      why_not = concat("rank ", each, ": FASTCOMM_TRANSPORT=gloo");
      return {};
    }
    std::string mask;
    for (const std::string& other : hosts) mask += hosts[each] == other ? '1' : '0';
    shares.push_back(std::move(mask));
  }
  return shares;
}

/// The peers on this rank's host. Raises Error if they do not share memory.
std::unique_ptr<Transport> peers_of_host(Bootstrap& bootstrap, const HostLayout& layout,
                                         Deadline deadline, GroupTraits& traits) {
  const std::vector<int>& ranks = layout.hosts[layout.own];
  PartOfStore own(bootstrap, concat("host/", ranks[0], "/"));
  auto peers =
      find_peers(own, layout.local, static_cast<int>(ranks.size()), deadline, traits).peers;
  if (peers == nullptr) throw Error(ErrorCode::kSystem, traits.why_not_native);
  return peers;
}

std::shared_ptr<Communicator> opened_on_host(std::unique_ptr<Transport> peers,
                                             const HostLayout& layout, int size,
                                             const GroupTraits& traits) {
  peers->is_part(layout.hosts[layout.own], size);
  return opened(std::move(peers), traits);
}

/// Collective over all hosts. Of the same result on every rank.
HostRanks form_host(Bootstrap& bootstrap, int rank, const std::vector<std::string>& shares,
                    const std::string& why_not_tried, Deadline deadline) {
  const int size = static_cast<int>(shares.size());
  HostRanks host{nullptr, layout_of(shares, rank), why_not_tried, {}};
  if (shares.empty()) return host;
  host.why_not = why_not_composed(host.layout);
  if (!host.why_not.empty()) return host;
  const bool costs_more = host.layout.ranks_per_host() == 1 || !host.layout.aligned();
  const bool declines = costs_more && environment().route == "fastest";
  std::unique_ptr<Transport> peers;
  GroupTraits traits;
  std::string problem;
  try {
    peers = peers_of_host(bootstrap, host.layout, deadline, traits);
  } catch (const Error& error) {
    problem = error.what();
  }
  // All ranks know what all say, so they decide alike.
  PartOfStore part(bootstrap, "hosts/");
  const std::string ok = "ok ";  // its thresholds follow
  const HostThresholds wanted =
      choose_host_thresholds(host.layout.num_hosts(), host.layout.ranks_per_host());
  const std::string own = declines          ? "FASTCOMM_ROUTE=fastest"
                          : problem.empty() ? ok + wanted.as_text()
                                            : concat("numbered within its host: ", problem);
  uint64_t unused;
  const auto told = told_by_all(part, rank, size, own, deadline, unused);
  for (int each = 0; each < size && host.why_not.empty(); ++each) {
    if (told[each].rfind(ok, 0) != 0) host.why_not = concat("rank ", each, ": ", told[each]);
  }
  if (!host.why_not.empty()) return host;
  host.thresholds = HostThresholds::from_text(told[0].substr(ok.size()));
  host.group = opened_on_host(std::move(peers), host.layout, size, traits);
  return host;
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
  Found found = find_peers(bootstrap, rank, size, deadline, formed.traits);
  formed.token = found.token;
  if (found.peers == nullptr) {
    std::string& why_not = formed.traits.why_not_native;
    if (size > kMaxRanks) {
      found.shares = presumed_shares(bootstrap, rank, size, deadline, why_not, formed.token);
    }
    formed.host = form_host(bootstrap, rank, found.shares, why_not, deadline);
  } else {
    formed.group = opened(std::move(found.peers), formed.traits);
  }
  return formed;
}

std::shared_ptr<Communicator> form_host_again(Bootstrap& bootstrap, const HostLayout& layout,
                                              int size, Deadline deadline) {
  GroupTraits traits;
  auto peers = peers_of_host(bootstrap, layout, deadline, traits);
  return opened_on_host(std::move(peers), layout, size, traits);
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
