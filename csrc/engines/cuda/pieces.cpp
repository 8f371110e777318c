#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "engines/cuda/pieces.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.h"
#include "kernels/cuda/multi_copy.h"
#include "kernels/cuda/multi_reduce.h"

namespace fastcomm {
namespace {

/// True for other types that a message's elements may have in memory.
bool converts(DType in, DType out) {
  const auto is_half = [](DType type) {
    return type == DType::kFloat16 || type == DType::kBFloat16;
  };
  return (in == DType::kFloat32 && is_half(out)) || (out == DType::kFloat32 && is_half(in));
}

/// Moves of one call, by types.
class Moves {
 public:
  void add(void* to, DType to_type, const void* from, DType from_type, uint64_t count) {
    if (count == 0) return;
    if (from_type == to_type) {
      copies_.push_back({to, from, count * dtype_size(to_type)});
    } else {
      casts_[{from_type, to_type}].push_back({to, from, count});
    }
  }

  void launch(cudaStream_t stream, const ChannelState* channel) const {
    launch_multi_copy(copies_.data(), static_cast<int>(copies_.size()), stream, channel);
    for (const auto& [types, casts] : casts_) {
      std::vector<ReduceSegment> segments;
      for (const Cast& cast : casts) segments.push_back({&cast.from, &cast.to, cast.count});
      launch_multi_reduce(segments.data(), static_cast<int>(segments.size()),
                          {types.first, types.second, 1, 1}, stream, channel);
    }
  }

 private:
  struct Cast {
    void* to;
    const void* from;
    uint64_t count;
  };
  std::vector<CopySegment> copies_;
  std::map<std::pair<DType, DType>, std::vector<Cast>> casts_;  // from, to
};

/// Calls visit(piece, elements from the piece's start, place in the window, elements) for the part
/// of each span in each piece. The pieces before the first are skipped: a list of thousands costs
/// microseconds per round.
template <class Visit>
void each_piece_of(const std::vector<PiecesSpan>& spans, DType dtype, const Visit& visit) {
  for (const PiecesSpan& span : spans) {
    const uint64_t end = span.first + span.count;
    uint64_t begin = 0;
    for (const MessagePiece& piece : *span.pieces) {
      const uint64_t from = std::max(begin, span.first);
      const uint64_t to = std::min(begin + piece.count, end);
      if (from < to) {
        char* const place = span.window + (from - span.first) * dtype_size(dtype);
        visit(piece, from - begin, place, to - from);
      }
      begin += piece.count;
      if (begin >= end) break;
    }
  }
}

}  // namespace

void gather_pieces(const std::vector<PiecesSpan>& spans, DType dtype, cudaStream_t stream,
                   const ChannelState* channel) {
  Moves moves;
  each_piece_of(spans, dtype,
                [&](const MessagePiece& piece, uint64_t at, char* to, uint64_t count) {
                  const auto* const from =
                      static_cast<const char*>(piece.from) + at * dtype_size(piece.from_type);
                  moves.add(to, dtype, from, piece.from_type, count);
                });
  moves.launch(stream, channel);
}

void scatter_pieces(const std::vector<PiecesSpan>& spans, DType dtype, cudaStream_t stream,
                    const ChannelState* channel) {
  Moves moves;
  each_piece_of(spans, dtype,
                [&](const MessagePiece& piece, uint64_t at, char* from, uint64_t count) {
                  char* const to = static_cast<char*>(piece.to) + at * dtype_size(piece.to_type);
                  moves.add(to, piece.to_type, from, dtype, count);
                });
  moves.launch(stream, channel);
}

void spoil_pieces(const MeetingPlace& place, const MessagePieces& pieces, cudaStream_t stream) {
  std::map<DType, std::vector<DeviceResult>> results;
  for (const MessagePiece& piece : pieces) {
    results[piece.to_type].push_back({piece.to, piece.count});
  }
  for (const auto& [type, those] : results) launch_spoil(place, type, those, stream);
}

void spoil_shards(const MeetingPlace& place, const ShardPieces& shards, int rank,
                  cudaStream_t stream) {
  std::map<char*, uint64_t> parts;  // in halves: all types have 16 bits at least
  for (size_t owner = 0; owner < shards.size(); ++owner) {
    if (static_cast<int>(owner) == rank) continue;
    for (const MessagePiece& piece : shards[owner]) {
      parts[static_cast<char*>(piece.to)] = piece.count * dtype_size(piece.to_type) / 2;
    }
  }
  // The shards of several ranks in a tensor lie end to end.
  std::vector<DeviceResult> results;
  for (const auto& [begin, halves] : parts) {
    const bool goes_on =
        !results.empty() &&
        static_cast<char*>(results.back().memory) + 2 * results.back().count == begin;
    if (goes_on) {
      results.back().count += halves;
    } else {
      results.push_back({begin, halves});
    }
  }
  launch_spoil_of_halves(place, results, stream);
}

void check_pieces(const MessagePieces& pieces, DType dtype) {
  const auto check = [&](const void* memory, DType type) {
    if (type != dtype && !converts(type, dtype)) {
      throw Error(ErrorCode::kUnsupported, concat("a message of ", dtype_name(dtype),
                                                  " with a piece of ", dtype_name(type)));
    }
    FC_CHECK(reinterpret_cast<uintptr_t>(memory) % dtype_size(type) == 0,
             "a piece of a message is not aligned to its elements of ", dtype_name(type));
  };
  for (const MessagePiece& piece : pieces) {
    check(piece.from, piece.from_type);
    check(piece.to, piece.to_type);
  }
}

void load_pieces_kernels() {
  load_multi_copy();
  for (const DType half : {DType::kFloat16, DType::kBFloat16}) {
    load_conversion(DType::kFloat32, half);
    load_conversion(half, DType::kFloat32);
  }
}

}  // namespace fastcomm
#endif
