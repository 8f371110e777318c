#include "c10d/engines/hosts/host_lists.h"

#include <algorithm>
#include <cstring>

#include "c10d/engines/hosts/flat_runs.h"
#include "c10d/engines/hosts/gather_in_chunks.h"
#include "c10d/engines/hosts/host_moves.h"
#include "c10d/engines/hosts/sum_in_chunks.h"
#include "c10d/engines/hosts/trees_in_chunks.h"
#include "coll/fused_local.h"

namespace fastcomm {
namespace {

/// Gradients of one type that travel in one way.
struct OneType {
  DType gradient, wire;
  FlatRuns<Gradient> runs;

  /// True if packing may write residuals: some ranks may have none, but all go one way.
  bool feeds_back() const { return wire != gradient; }
};

std::vector<OneType> by_type(const std::vector<Gradient>& tensors) {
  std::vector<OneType> types;
  for (const Gradient& each : tensors) {
    if (each.count == 0) continue;
    auto type = std::find_if(types.begin(), types.end(), [&](const OneType& known) {
      return known.gradient == each.dtype && known.wire == each.wire;
    });
    if (type == types.end()) type = types.insert(type, {each.dtype, each.wire, {}});
    type->runs.add(each);
  }
  return types;
}

/// The ends of their sum (SumInChunks). What is summed lies in the chunk's memory.
struct PackedTerms {
  const OneType& type;
  const PartialSum& sum;

  static char* data(const Gradient& tensor, const Span& part) {
    return tensor.data + part.first * dtype_size(tensor.dtype);
  }

  uint64_t count() const { return type.runs.count(); }
  uint64_t room(uint64_t each) const { return each; }
  bool needs_agreement() const { return type.feeds_back(); }

  const void* terms(const Span& span, char* room) const {
    type.runs.each(span, [&](const Gradient& tensor, const Span& part, uint64_t at) {
      pack(tensor, part, room + at * sum.partial_size());
    });
    return room;
  }

  char* target(const Span&, char* room) const { return room; }

  void done(const Span& span, char* room) const {
    const ConvertFunction convert = convert_function(type.gradient, type.wire);
    type.runs.each(span, [&](const Gradient& tensor, const Span& part, uint64_t at) {
      convert(data(tensor, part), room + at * sum.size(), part.count);
    });
  }

 private:
  void pack(const Gradient& tensor, const Span& part, char* to) const {
    if (type.wire == type.gradient) {
      return convert_function(sum.partial, type.gradient)(to, data(tensor, part), part.count);
    }
    constexpr uint64_t kPiece = 1024;
    const ConvertFunction widen = convert_function(sum.partial, type.wire);
    uint16_t rounded[kPiece];
    for (uint64_t done = 0; done < part.count; done += kPiece) {
      const Span piece{part.first + done, smaller(kPiece, part.count - done)};
      const auto* from = reinterpret_cast<const float*>(data(tensor, piece));
      if (tensor.residual == nullptr) {
        convert_function(type.wire, type.gradient)(rounded, from, piece.count);
      } else {
        float* const residual = tensor.residual + piece.first;
        feedback_function(type.wire)(rounded, from, residual, piece.count);
      }
      widen(to + done * sum.partial_size(), rounded, piece.count);
    }
  }
};

/// Bytes of a tensor.
struct Bytes {
  char* data;
  uint64_t count;
};

/// Each rank's shards in a row, in the chunk's memory.
class PackedShards {
 public:
  PackedShards(const std::vector<Gradient>& shards, int ranks)
      : owned_(static_cast<size_t>(ranks)) {
    for (const Gradient& each : shards) {
      owned_[each.owner].add({each.data, each.count * dtype_size(each.dtype)});
    }
  }
  uint64_t bytes(int rank) const { return owned_[rank].count(); }
  /// A chunk's bytes of each rank, of at most `each`.
  uint64_t room(uint64_t each) const { return owned_.size() * each; }
  char* place(const Span& span, int rank, char* room) const { return room + rank * span.count; }
  const char* own(const Span& span, int rank, char* room) const {
    char* const to = place(span, rank, room);
    owned_[rank].each(span, [&](const Bytes& run, const Span& part, uint64_t at) {
      std::memcpy(to + at, run.data + part.first, part.count);
    });
    return to;
  }
  void done(const Span& span, int own_rank, char* room) const {
    for (int rank = 0; rank < static_cast<int>(owned_.size()); ++rank) {
      if (rank == own_rank) continue;
      const char* const from = place(span, rank, room);
      owned_[rank].each(span, [&](const Bytes& run, const Span& part, uint64_t at) {
        std::memcpy(run.data + part.first, from + at, part.count);
      });
    }
  }

 private:
  std::vector<FlatRuns<Bytes>> owned_;
};

template <class Plan>
void sum_type(HostCall& call, Plan plan) {
  plan.between.begin(call, HostPath::kLong);
  if (plan.ends.needs_agreement()) plan.inside.barrier(call);  // its own host agrees, too
  plan.between.in_chunks(call, plan.ends.count(), plan.each, plan.memory, plan);
}

}  // namespace

void sum_lists(HostCall& call, HostInside& inside, HostExchange& between) {
  GradientList& list = *call.call.gradients;
  const std::vector<OneType> types = by_type(list.tensors());
  if (types.empty()) meet(call, inside, between);
  for (const OneType& type : types) {
    const PartialSum sum(type.gradient, type.wire, list.spec(), inside.whole_size());
    const PackedTerms ends{type, sum};
    if (between.layout().aligned()) {
      sum_type(call, SumInChunks<PackedTerms>{call, sum, ends, inside, between});
    } else {
      sum_type(call, TreesInChunks<PackedTerms>{call, sum, ends, inside, between});
    }
  }
  note_norms(list, 0, list.units());
}

void gather_shards(HostCall& call, HostInside& inside, HostExchange& between) {
  gather_in_chunks(call, inside, between,
                   PackedShards(call.call.gradients->tensors(), inside.whole_size()));
}

}  // namespace fastcomm
