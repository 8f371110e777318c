// Operations on a time axis, for a tool that shows them there (c10d/edge/span_tracks.h). Without
// one, an operation costs a look at one word.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace fastcomm {

/// An operation of a rank that is over. Times are in ns since the epoch, 0 for what never happened.
struct OperationSpan {
  std::string group;      // as its warnings begin
  std::string name;       // "all_reduce", "send to rank 1"
  uint64_t sequence = 0;  // of the group
  uint64_t bytes = 0;     // of this rank's part of the message
  int64_t issued = 0;     // by the caller
  int64_t begun = 0;      // its turn has come: those before it are over
  int64_t met = 0;        // every peer has come: from here on data move
  int64_t ended = 0;
  int last = -1;  // the peer that came last, if this rank saw it come
  bool is_message = false;
  bool has_failed = false;
};

/// Takes a span; called by any thread, without locks of the group.
using SpanSink = void (*)(OperationSpan&&);

/// From here on spans of operations that are issued go there; nullptr: nowhere. A thread that ends
/// an operation may still call the one before.
void set_span_sink(SpanSink sink);
SpanSink span_sink();

/// A span's time.
int64_t span_clock();

/// A span of an operation that is issued now; nullptr if nobody takes it. `bytes` as shown.
std::unique_ptr<OperationSpan> begin_span(const std::string& group, const char* name,
                                          uint64_t sequence, uint64_t bytes);
/// Ends it, if it is there, and hands it on.
void end_span(std::unique_ptr<OperationSpan> span, bool has_failed);

}  // namespace fastcomm
