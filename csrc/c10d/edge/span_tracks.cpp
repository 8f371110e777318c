#include "c10d/edge/span_tracks.h"

#if __has_include(<kineto/libkineto.h>)
#define FMT_HEADER_ONLY  // the headers want a library that is hidden in torch
#include <kineto/libkineto.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/spans.h"

namespace fastcomm {
namespace {

using libkineto::ActivityType;
using libkineto::CpuTraceBuffer;
using libkineto::GenericTraceActivity;

/// As numbers of threads, which are smaller, and processes, which share the row of their threads.
constexpr int32_t kFirstTrack = 1 << 24;

/// What has been taken since a session began. One session at a time, as torch's profiler.
struct Taken {
  std::mutex mutex;
  std::vector<OperationSpan> spans;
};

Taken& taken() {
  static auto* const all = new Taken;  // threads may end operations while the process exits
  return *all;
}

void take(OperationSpan&& span) {
  const std::lock_guard<std::mutex> lock(taken().mutex);
  taken().spans.push_back(std::move(span));
}

/// "[rank0]: fastcomm: group '0' of all 2 ranks: " without the rank and the colon.
std::string track_of(const OperationSpan& span) {
  const size_t begin = std::min(span.group.find("fastcomm: "), span.group.size());
  std::string name = span.group.substr(begin);
  while (!name.empty() && (name.back() == ' ' || name.back() == ':')) name.pop_back();
  return span.is_message ? concat(name, ", ", span.name) : name;
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  ~Session() override { stop(); }

  void start() override {
    const std::lock_guard<std::mutex> lock(taken().mutex);
    taken().spans.clear();
    set_span_sink(take);
    runs_ = true;
  }

  void stop() override {
    if (!std::exchange(runs_, false)) return;  // another session may run by now
    set_span_sink(nullptr);
    const std::lock_guard<std::mutex> lock(taken().mutex);
    spans_ = std::move(taken().spans);
    taken().spans.clear();
  }

  std::vector<std::string> errors() override { return {}; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    trace_ = std::make_unique<CpuTraceBuffer>();
    trace_->span = libkineto::TraceSpan(0, 0, "fastcomm");
    trace_->gpuOpCount = 0;
    std::stable_sort(
        spans_.begin(), spans_.end(),
        [](const OperationSpan& a, const OperationSpan& b) { return began(a) < began(b); });
    std::map<int32_t, int64_t> ends;
    for (const OperationSpan& span : spans_) {
      const auto track = tracks_.try_emplace(track_of(span), kFirstTrack + tracks_.size()).first;
      add(span, track->second, ends[track->second]);
    }
    if (!spans_.empty()) trace_->span.startTime = began(spans_.front());
    trace_->span.endTime = trace_->span.startTime;
    for (const auto& span : spans_) {
      trace_->span.endTime = std::max(trace_->span.endTime, span.ended);
    }
    for (const auto& activity : trace_->activities) activity->log(logger);
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> infos;
    for (const auto& [name, track] : tracks_) {
      // The order of both numbers differs where the type has a constructor: torch 2.11.
      if constexpr (std::is_aggregate_v<libkineto::ResourceInfo>) {
        infos.push_back({track, track, getpid(), name});
      } else {
        infos.push_back({getpid(), track, track, name});
      }
    }
    return infos;
  }

  std::unique_ptr<CpuTraceBuffer> getTraceBuffer() override { return std::move(trace_); }

 private:
  static int64_t began(const OperationSpan& span) {
    return span.begun != 0 ? span.begun : span.issued;
  }

  /// Slices of one track do not overlap: messages that do begin where the last one ends.
  void add(const OperationSpan& span, int32_t track, int64_t& end) {
    const int64_t begin = std::min(std::max(began(span), end), span.ended);
    const int64_t met =
        span.met == 0 ? span.ended : std::min(std::max(span.met, begin), span.ended);
    end = std::max(end, span.ended);
    GenericTraceActivity& whole = slice(span.name, begin, span.ended, track);
    whole.addMetadata("sequence", span.sequence);
    whole.addMetadata("bytes", span.bytes);
    whole.addMetadata("queued (us)", static_cast<double>(began(span) - span.issued) / 1000);
    if (span.has_failed) whole.addMetadataQuoted("failed", "yes");
    if (span.met == 0 && !span.has_failed) return;  // nothing was exchanged
    if (met > begin) {
      slice(span.last < 0 ? "waiting" : concat("waiting for rank ", span.last), begin, met, track);
    }
    if (span.ended > met) slice("moving data", met, span.ended, track);
  }

  GenericTraceActivity& slice(const std::string& name, int64_t begin, int64_t end, int32_t track) {
    trace_->emplace_activity(trace_->span, ActivityType::PRIVATEUSE1_RUNTIME, name);
    GenericTraceActivity& activity = *trace_->activities.back();
    activity.startTime = begin;
    activity.endTime = end;
    activity.device = getpid();
    activity.resource = track;
    activity.threadId = track;
    return activity;
  }

  bool runs_ = false;
  std::vector<OperationSpan> spans_;
  std::map<std::string, int32_t> tracks_;
  std::unique_ptr<CpuTraceBuffer> trace_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }

  const std::set<ActivityType>& availableActivities() const override { return types_; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& types, const libkineto::Config&) override {
    if (types.count(ActivityType::CPU_OP) == 0) return nullptr;
    return std::make_unique<Session>();
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  const std::string name_ = "fastcomm";
  const std::set<ActivityType> types_{ActivityType::PRIVATEUSE1_RUNTIME};
};

}  // namespace

void register_span_tracks() {
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
}

}  // namespace fastcomm

#else

namespace fastcomm {

void register_span_tracks() {}

}  // namespace fastcomm

#endif
