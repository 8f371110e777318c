#include "core/spans.h"

#include <atomic>
#include <chrono>
#include <utility>

namespace fastcomm {
namespace {

// Relaxed: a sink is a function, and guards what it writes to itself.
std::atomic<SpanSink> current_sink{nullptr};

}  // namespace

void set_span_sink(SpanSink sink) { current_sink.store(sink, std::memory_order_relaxed); }

SpanSink span_sink() { return current_sink.load(std::memory_order_relaxed); }

// The clock of torch's profiler.
int64_t span_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::unique_ptr<OperationSpan> begin_span(const std::string& group, const char* name,
                                          uint64_t sequence, uint64_t bytes) {
  if (span_sink() == nullptr) return nullptr;
  auto span = std::make_unique<OperationSpan>();
  span->group = group;
  span->name = name;
  span->sequence = sequence;
  span->bytes = bytes;
  span->issued = span_clock();
  return span;
}

void end_span(std::unique_ptr<OperationSpan> span, bool has_failed) {
  const SpanSink sink = span != nullptr ? span_sink() : nullptr;
  if (sink == nullptr) return;
  span->ended = span_clock();
  span->has_failed = has_failed;
  sink(std::move(*span));
}

}  // namespace fastcomm
