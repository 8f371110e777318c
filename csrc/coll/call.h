// One rank's call of a collective operation: its parameters, and the place of its data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coll/call_header.h"
#include "coll/pieces.h"
#include "core/error.h"
#include "core/records.h"
#include "core/types.h"
#include "kernels/add_rms_norm_cpu.h"

namespace fastcomm {

class GradientList;
struct Messages;

/// The way to carry out a call. The numbers travel in headers, like those of core/types.h.
enum class Algorithm : uint8_t {
  kDelegated = 0,  // not by this code: refused, or another backend serves the group
  kNothing = 1,    // one rank: at most a copy
  kOneShot = 2,    // everything in one step
  kPipelined = 3,  // blocks through double-buffered slots
  kFlags = 4,      // flags alone
  kByTable = 5,    // one step or blocks, decided after the first wait: sizes differ
  kRing = 6,       // of a send or a receive: the ring of the pair
  kInPlace = 7,    // as kPipelined, but tensors may be used without staging (engines/cuda/ends.h)
  kComposed = 8,   // inside hosts by this code, between them by another backend
};

const char* algorithm_name(Algorithm algorithm);

struct Call {
  OpKind kind = OpKind::kNone;
  DType dtype = DType::kOther;
  ReduceOp op = ReduceOp::kNone;
  int root = -1;
  uint64_t count = 0;           // elements of one rank's message; for reduce_scatter, of its output
  const void* input = nullptr;  // all_reduce, reduce, all_gather
  void* output = nullptr;       // all_reduce (may be the input), reduce's root, broadcast, ...
  std::vector<void*> outputs;   // all_gather: one per rank
  std::vector<const void*> inputs;  // reduce_scatter: one per rank; this rank's may be the output
  double factor = 1;                // of ReduceOp::kPremulSum: multiplies every input
  double scale = 1;                 // of SUM and AVG between devices: multiplies the result

  std::shared_ptr<GradientList> gradients;  // of operations over lists
  std::shared_ptr<Messages> messages;       // of operations whose sizes are known in pairs
  // Between devices, for operations over lists, instead of input and output. For gather_shards
  // `count` is that of the longest rank:
  std::shared_ptr<const MessagePieces> pieces;
  std::shared_ptr<const ShardPieces> shards;

  /// The tail of a sum, which a schedule may run over the rows that it has summed.
  std::shared_ptr<AddRmsNorm> tail;

  // Further values that are compared, and their text for messages (CallHeader):
  uint64_t signature = 0;
  uint64_t balance = 0;
  std::string detail;  // "sends [1, 2] bytes, expects [3, 0]"

  /// The user's call of which this one is a step, if it is one: peers compare that, messages show
  /// it, and `signature` numbers the step. Read while the operation is made.
  const Call* part_of = nullptr;
  std::string site;  // of that: the place of the call in the program, if it is known

  CallRecord record{};  // told of the call's number, and when all ranks have come

  uint64_t bytes() const { return count * dtype_size(dtype); }
};

/// The ranks called different operations.
struct MismatchError : Error {
  MismatchError(const std::string& message, std::string both, int first_odd)
      : Error(ErrorCode::kMismatch, message), calls(std::move(both)), odd(first_odd) {}
  std::string calls;  // brief: a control block has little room
  int odd;            // the first rank unlike the majority's call, -1 if there is no majority
};

/// The header that peers compare: equal on every rank, or the ranks did not call the same
/// operation.
CallHeader make_header(const Call& call, uint64_t sequence, uint8_t algorithm);

}  // namespace fastcomm
