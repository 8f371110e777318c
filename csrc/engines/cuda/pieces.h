// Messages in pieces (coll/pieces.h), gathered into this rank's window and scattered out of
// windows: one kernel per pair of types, or several if a table does not hold all pieces.
//
// A piece starts in the window at the end of the one before, so that ranks agree on every position
// by sizes alone. Cost: each byte read once and written once. If sizes of pieces are no multiples
// of 16 bytes, later ones are aligned unlike their tensors, and each pack takes two loads.
#pragma once

#include <cstdint>
#include <vector>

#include "coll/pieces.h"
#include "engines/cuda/meeting.h"
#include "kernels/channel.h"
#include "kernels/cuda_api.h"

namespace fastcomm {

/// Elements of a message in pieces, and their place in a window, in their order there. Elements
/// past the message's end are ignored.
struct PiecesSpan {
  const MessagePieces* pieces;
  uint64_t first;
  uint64_t count;
  char* window;
};

/// Enqueue the move, for messages of `dtype`. If the channel has failed by then nothing is moved.
/// Raise Error: types that do not fit together (kUnsupported), a failed launch (kSystem).
void gather_pieces(const std::vector<PiecesSpan>& spans, DType dtype, cudaStream_t stream,
                   const ChannelState* channel = nullptr);
void scatter_pieces(const std::vector<PiecesSpan>& spans, DType dtype, cudaStream_t stream,
                    const ChannelState* channel = nullptr);

/// launch_spoil for all destinations of the scatter.
void spoil_pieces(const MeetingPlace& place, const MessagePieces& pieces, cudaStream_t stream);

/// After a failure, writes NaN into the shards of ranks other than `rank`: memory of any
/// floating-point type, for each of which all bits set is a NaN.
void spoil_shards(const MeetingPlace& place, const ShardPieces& shards, int rank,
                  cudaStream_t stream);

/// Raises the Error with which the others would refuse such pieces of a message of `dtype`.
void check_pieces(const MessagePieces& pieces, DType dtype);

/// Loads the kernels (load_meeting_kernels).
void load_pieces_kernels();

}  // namespace fastcomm
