// One call of a collective operation by one rank: what is asked for, and where the data lies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coll/call_header.h"
#include "coll/pieces.h"
#include "core/error.h"
#include "core/types.h"

namespace fastcomm {

class GradientList;
struct Messages;

/// How a call is carried out. The numbers travel in headers, like those of core/types.h.
enum class Algorithm : uint8_t {
  kDelegated = 0,  // not by this code: refused, or another backend serves the group
  kNothing = 1,    // one rank: at most a copy
  kOneShot = 2,    // everything in one step
  kPipelined = 3,  // blocks through double-buffered slots
  kFlags = 4,      // flags alone
  kByTable = 5,    // one step or blocks, decided after the first wait: sizes differ
  kRing = 6,       // of a send or a receive: the ring of the pair
  kInPlace = 7,    // as kPipelined, where tensors may be used without staging (engines/cuda/ends.h)
};

const char* algorithm_name(Algorithm algorithm);

struct Call {
  OpKind kind = OpKind::kNone;
  DType dtype = DType::kOther;
  ReduceOp op = ReduceOp::kNone;
  int root = -1;
  uint64_t count = 0;               // elements of one rank's message; of reduce_scatter its output
  const void* input = nullptr;      // all_reduce, reduce, all_gather
  void* output = nullptr;           // all_reduce (may be the input), reduce's root, broadcast, ...
  std::vector<void*> outputs;       // all_gather: one a rank
  std::vector<const void*> inputs;  // reduce_scatter: one a rank; this rank's may be the output
  double factor = 1;                // of ReduceOp::kPremulSum: every input is multiplied by it
  double scale = 1;                 // of SUM and AVG between devices: multiplies the result

  std::shared_ptr<GradientList> gradients;  // of operations over lists
  std::shared_ptr<Messages> messages;       // of those whose sizes are known in pairs
  // Between devices, for operations over lists, in place of input and output; for gather_shards `count` is
  // the longest rank's:
  std::shared_ptr<const MessagePieces> pieces;
  std::shared_ptr<const ShardPieces> shards;

  // What else is compared, and how messages call it (CallHeader):
  uint64_t signature = 0;
  uint64_t balance = 0;
  std::string detail;  // "sends [1, 2] bytes, expects [3, 0]"

  uint64_t bytes() const { return count * dtype_size(dtype); }
};

/// The ranks called different operations.
struct MismatchError : Error {
  MismatchError(const std::string& message, std::string both, int first_odd)
      : Error(ErrorCode::kMismatch, message), calls(std::move(both)), odd(first_odd) {}
  std::string calls;  // briefly: a control block has little room
  int odd;  // the first rank that called otherwise than most, -1 where no call is most ranks'
};

/// What peers compare: equal on every rank, or the ranks did not call the same operation.
CallHeader make_header(const Call& call, uint64_t sequence, uint8_t algorithm);

}  // namespace fastcomm
