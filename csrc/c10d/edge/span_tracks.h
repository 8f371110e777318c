// Spans of operations (core/spans.h) in traces of torch's profiler, on tracks of their own.
#pragma once

namespace fastcomm {

/// Registers with torch's profiler, once a process, as a source of activities. From then on each
/// trace that is asked for CPU activities gets a track for each group, "fastcomm: group '0' ...",
/// with a slice for each operation, divided into waiting for peers and moving data, and tracks for
/// messages. Where torch has no such profiler this does nothing.
void register_span_tracks();

}  // namespace fastcomm
