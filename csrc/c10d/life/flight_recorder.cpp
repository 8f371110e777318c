#include "c10d/life/flight_recorder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/FlightRecorderDetail.hpp>
#include <tuple>
#include <utility>

#include "c10d/life/compat.h"
#include "c10d/life/hooks.h"
#include "c10d/life/record_dump.h"
#include "c10d/life/watch.h"
#include "core/env.h"
#include "core/error.h"
#include "core/wait_warning.h"
#include "transport/fork.h"

namespace fastcomm {
namespace {

/// torch's recorder asks events how far an operation is; entries here are told (RecordedEntry).
struct NoEvent {
  static bool query() { return false; }
};

using Recorder = ::c10d::FlightRecorder<NoEvent>;
using Names = std::vector<std::string>;

// As torch's own recorder and ProcessGroupNCCL read them, older names last.
const Names kSize{"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"};
const Names kFile{"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"};
const Names& kOnFailure = dump_on_failure_variables();
const Names kPipe{"TORCH_NCCL_DEBUG_INFO_PIPE_FILE"};

bool is_set(const Names& names) {
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    const char* const value = std::getenv(name.c_str());
    return value != nullptr && *value != '\0';
  });
}

/// What the environment asks for.
struct Wanted {
  size_t entries = 0;  // 0: nothing is recorded
  bool on_failure = false;
  std::string pipe;     // "" for none
  std::string records;  // folder of records that are kept on failure, "" for none

  /// Raises for a value that is no number.
  static Wanted read() {
    constexpr int kDefault = 2000;  // of torch where it records without being asked
    Wanted wanted;
    wanted.pipe = ::c10d::getCvarString(kPipe, "");
    wanted.on_failure = ::c10d::getCvarBool(kOnFailure, is_set(kFile));
    const bool dumps = wanted.on_failure || !wanted.pipe.empty();
    const int entries = ::c10d::getCvarInt(kSize, dumps ? kDefault : 0);
    wanted.entries = entries > 0 ? static_cast<size_t>(entries) : 0;
    wanted.records = environment().dump;
    return wanted;
  }
};

/// A pipe that asks for a dump when anything is written to it, as ProcessGroupNCCL has one.
class Pipe {
 public:
  Pipe(const std::string& stem, int rank) {
    const std::string name = stem + std::to_string(rank) + ".pipe";
    if ((::unlink(name.c_str()) == 0 || errno == ENOENT) && ::mkfifo(name.c_str(), 0666) == 0) {
      file_ = ::open(name.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    }
    if (file_ < 0) {
      write_warning("fastcomm: flight recorder: ",
                    concat("no pipe ", name, ": ", std::strerror(errno)));
    }
  }
  bool asks() const {
    char bytes[128];
    return file_ >= 0 && ::read(file_, bytes, sizeof bytes) > 0;
  }

 private:
  int file_ = -1;  // open until the process ends
};

void warn(const std::string& text) noexcept {
  try {
    write_warning("fastcomm: flight recorder: ", text);
  } catch (...) {  // no memory
  }
}

/// Runs `body`; what it raises is a warning. Nothing here may make a failure worse.
template <class Body>
void warning(const Body& body) noexcept {
  try {
    body();
  } catch (const std::exception& error) {
    warn(error.what());
  } catch (...) {
    warn("unknown error");
  }
}

/// A group that is looked at.
struct Watched {
  const std::function<bool()>* in_trouble;
  uint64_t token;
};

/// The recorder of this process, its groups, and the thread that writes dumps. Never destroyed: its
/// thread and works may outlive the static objects.
///
/// Locks:
///   writing_   one dump at a time; its holder waits for the GIL. Calls never take it
///   groups_    the groups, and what is known of the process; held while groups are asked, so that
///              none of them ends meanwhile. May be taken with writing_
///   recorder().mutex_  the entries; the last one
class Dumps {
 public:
  static Dumps& instance() {
    static auto* shared = new Dumps;
    return *shared;
  }

  /// Whether calls have entries; whether groups are looked at.
  bool on() const { return recorder_ != nullptr; }
  bool looks() const { return on() || !wanted_.records.empty(); }
  Recorder& recorder() { return *recorder_; }

  void add(RecordedGroup* group, const Watched& watched, int rank) {
    {
      const std::lock_guard<std::mutex> lock(groups_);
      if (rank_ < 0) {
        rank_ = rank;
        if (on() && !wanted_.pipe.empty()) pipe_ = std::make_unique<Pipe>(wanted_.pipe, rank);
      }
      all_.emplace(group, watched);
    }
    wake();
  }
  /// From here on the group is not asked any more.
  void remove(RecordedGroup* group, bool failing) {
    {
      const std::lock_guard<std::mutex> lock(groups_);
      const auto found = all_.find(group);
      if (found == all_.end()) return;
      if (failing || is_in_trouble(*found->second.in_trouble)) {
        due_ = true;
        failed_ = found->second.token;
      }
      all_.erase(found);
    }
    wake();
  }

  std::optional<std::string> write() {
    const std::lock_guard<std::mutex> lock(writing_);
    const int rank = this->rank();
    if (rank < 0) return std::nullopt;
    auto& writer = ::c10d::DebugInfoWriter::getWriter(rank);
    const bool active = ::c10d::getCvarBool(::c10d::TORCH_INCLUDE_ONLY_ACTIVE, false);
    // At once, and again with what needs the GIL: a thread may hold that for long, or for ever.
    writer.write(pickled(false, active));
    if (::c10d::getCvarBool(::c10d::TORCH_INCLUDE_STACK_TRACE, true)) {
      writer.write(pickled(true, active));
    }
    return writer.getWriterTarget();
  }

  /// The dump of a failure, once a process; later calls do nothing.
  void write_failure() noexcept {
    if (failure_written_.exchange(true)) return;
    if (!wanted_.records.empty()) {
      warning([&] {
        const std::string why = "a process group has failed";
        write_warning("fastcomm: ", concat(why, ": its ranks' calls are kept in ",
                                           write_records(wanted_.records, failed(), why),
                                           "; read it with fastcomm trace"));
      });
    }
    if (!wanted_.on_failure || !on()) return;
    warning([&] {
      if (const auto file = write()) warn("a process group has failed: see " + *file);
    });
  }
  /// True if one is to be written, and a group has failed.
  bool is_due() {
    if (!writes_failures() || failure_written_.load()) return false;
    const std::lock_guard<std::mutex> lock(groups_);
    for (const auto& [group, watched] : all_) {
      if (due_ || !is_in_trouble(*watched.in_trouble)) continue;
      due_ = true;
      failed_ = watched.token;
    }
    return due_;
  }
  bool writes_failures() const { return wanted_.on_failure || !wanted_.records.empty(); }
  /// The group that has failed.
  uint64_t failed() {
    const std::lock_guard<std::mutex> lock(groups_);
    return failed_;
  }

  /// Of this process in the job; -1 while it has no group.
  int rank() {
    const std::lock_guard<std::mutex> lock(groups_);
    return rank_;
  }

  std::string pickled(bool with_stacks, bool only_active) {
    return copied()->dump(std::nullopt, /*includeCollectives=*/true, with_stacks, only_active);
  }

 private:
  Dumps() : watch_("fc-recorder", [this] { return look(); }) {
    warning([&] {
      wanted_ = Wanted::read();
      if (wanted_.entries == 0) return;
      auto recorder = std::make_unique<Recorder>();
      recorder->max_entries_ = wanted_.entries;
      recorder->enabled_ = true;
      recorder->comm_lib_version_ = kNote;
      recorder_ = std::move(recorder);
    });
  }

  void wake() noexcept {
    if (!writes_failures() && wanted_.pipe.empty()) return;
    warning([&] { watch_.wake(); });
  }

  static bool is_in_trouble(const std::function<bool()>& asked) noexcept {
    try {
      return asked();
    } catch (...) {
      return false;
    }
  }

  /// Of the thread. True while there may be something to do.
  bool look() noexcept {
    const bool piped = has_pipe();
    if (piped && pipe_->asks()) warning([&] { write(); });
    if (is_due()) write_failure();
    return piped || looks_for_failures();
  }
  bool has_pipe() {
    const std::lock_guard<std::mutex> lock(groups_);
    return pipe_ != nullptr;  // which does not change any more
  }
  bool looks_for_failures() {
    if (!writes_failures() || failure_written_.load()) return false;
    const std::lock_guard<std::mutex> lock(groups_);
    return !all_.empty();
  }

  /// A recorder that nobody else uses: torch's dumps read parts of it without its lock.
  std::unique_ptr<Recorder> copied() {
    auto copy = std::make_unique<Recorder>();
    {
      const std::lock_guard<std::mutex> lock(recorder_->mutex_);
      copy->entries_ = recorder_->entries_;
      copy->next_ = recorder_->next_;
      copy->id_ = recorder_->id_;
      copy->pg_name_to_ranks_ = recorder_->pg_name_to_ranks_;
    }
    copy->comm_lib_version_ = recorder_->comm_lib_version_;
    copy->max_entries_ = recorder_->max_entries_;
    copy->enabled_ = true;
    for (const Recorder::Entry& entry : copy->entries_) {
      auto& status = copy->all_pg_status_[entry.pg_id_];
      if (status == nullptr) status = std::make_shared<::c10d::ProcessGroupStatus>();
      const auto number = static_cast<int64_t>(entry.collective_seq_id_);
      status->lastEnqueuedSeq = std::max(status->lastEnqueuedSeq, number);
      if (entry.isP2P_ || !entry.time_discovered_completed_) continue;
      status->lastStartedSeq = std::max(status->lastStartedSeq, number);
      status->lastCompletedSeq = std::max(status->lastCompletedSeq, number);
    }
    return copy;
  }

  static constexpr const char* kNote =
      "fastcomm, whose operations are named nccl:... here for torch's analyser";

  // Set by the constructor.
  Wanted wanted_;
  std::unique_ptr<Recorder> recorder_;

  std::mutex writing_, groups_;
  std::map<RecordedGroup*, Watched> all_;
  int rank_ = -1;
  bool due_ = false;     // a group has failed
  uint64_t failed_ = 0;  // its token
  std::unique_ptr<Pipe> pipe_;
  std::atomic<bool> failure_written_{false};
  Watch watch_;
};

/// Numbers of messages begin here. torch's analyser takes neighbours of equal numbers for parts of
/// one operation, be one a collective and the other a message.
constexpr size_t kFirstMessage = 1'000'000'000;

void set(const RecordedCall::Tensors& tensors, c10::SmallVector<int64_t, 4>& dimensions,
         std::vector<c10::ScalarType>& types, c10::SmallVector<int64_t, 8>& all_sizes) {
  for (const auto& sizes : tensors.sizes) {
    dimensions.push_back(static_cast<int64_t>(sizes.size()));
    all_sizes.append(sizes.begin(), sizes.end());
  }
  types = tensors.types;
}

/// Calls `body` with an entry, unless newer calls have taken its place.
template <class Body>
void with_entry(size_t id, const Body& body) {
  Recorder& recorder = Dumps::instance().recorder();
  const std::lock_guard<std::mutex> lock(recorder.mutex_);
  Recorder::Entry& entry = recorder.entries_.at(id % recorder.max_entries_);
  if (entry.id_ == id) body(entry);
}

void end_entry(size_t id, bool well) noexcept {
  warning([&] {
    with_entry(id, [&](Recorder::Entry& entry) {
      entry.retired_ = true;
      if (!well) return;
      const auto now = c10::getTime();
      entry.time_discovered_started_ = entry.time_created_;
      entry.time_discovered_completed_ = now;
      entry.duration_ = static_cast<float>(now - entry.time_created_) / 1e6F;  // ms
    });
  });
}

std::atomic<size_t> g_groups{0};

}  // namespace

std::unique_ptr<RecordedGroup> RecordedGroup::create(int rank, uint64_t token,
                                                     std::vector<uint64_t> members,
                                                     std::function<bool()> in_trouble) {
  if (!Dumps::instance().looks()) return nullptr;
  const auto number = static_cast<size_t>(rank);
  const int global = number < members.size() ? static_cast<int>(members[number]) : rank;
  std::unique_ptr<RecordedGroup> group(
      new RecordedGroup(std::move(members), std::move(in_trouble)));
  Dumps::instance().add(group.get(), {&group->in_trouble_, token}, global);
  any_.store(true, std::memory_order_relaxed);
  return group;
}

RecordedGroup::RecordedGroup(std::vector<uint64_t> members, std::function<bool()> in_trouble)
    : id_(g_groups++),
      members_(std::move(members)),
      in_trouble_(std::move(in_trouble)),
      has_entries_(Dumps::instance().on()) {}

RecordedGroup::~RecordedGroup() { close(false); }

void RecordedGroup::close(bool failing) noexcept {
  if (forked_from_endpoint() || closed_.exchange(true)) return;
  warning([&] { Dumps::instance().remove(this, failing); });
}

RecordedEntry RecordedGroup::begin(const RecordedCall& call, const std::string& name,
                                   const std::string& description) noexcept {
  RecordedEntry made;
  if (!has_entries_ || forked_from_endpoint()) return made;
  warning([&] {
    Recorder& recorder = Dumps::instance().recorder();
    const size_t collective = call.is_message ? collectives_.load() : ++collectives_;
    const size_t message = call.is_message ? kFirstMessage + ++messages_ : messages_.load();
    const std::tuple<std::string, std::string> names(name, description);
    if (!known_.exchange(true)) recorder.record_pg_ranks(names, members_);
    // Without tensors: what they are is said in `call`, also of those that have no sizes.
    const std::optional<size_t> id =
        recorder.record(id_, names, collective, message, ++calls_, call.name, {}, {}, nullptr,
                        nullptr, call.timeout, nullptr, call.is_message);
    if (!id) return;
    made = RecordedEntry(*id, end_entry);
    with_entry(*id, [&](Recorder::Entry& entry) {
      set(call.inputs, entry.input_dims_, entry.input_dtypes_, entry.sizes_);
      set(call.outputs, entry.output_dims_, entry.output_dtypes_, entry.sizes_);
    });
  });
  return made;
}

std::optional<std::string> flight_recorder_dump(bool with_stacks, bool only_active) {
  Dumps& dumps = Dumps::instance();
  if (!dumps.on()) return std::nullopt;
  return dumps.pickled(with_stacks, only_active);
}

std::optional<std::string> write_flight_recorder() {
  Dumps& dumps = Dumps::instance();
  return dumps.on() ? dumps.write() : std::nullopt;
}

void finish_flight_recorder() noexcept {
  if (forked_from_endpoint() || !RecordedGroup::any()) return;
  warning([] {
    Dumps& dumps = Dumps::instance();
    if (!dumps.writes_failures()) return;
    const bool failing = g_failure && !g_failure(true).empty();
    if (failing || dumps.is_due()) dumps.write_failure();
  });
}

}  // namespace fastcomm
