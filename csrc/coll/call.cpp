#include "coll/call.h"

namespace fastcomm {

const char* algorithm_name(Algorithm algorithm) {
  constexpr const char* kNames[] = {"gloo",     "nothing", "one-shot", "pipelined", "flags",
                                    "by table", "ring",    "in place", "composed"};
  return kNames[static_cast<int>(algorithm)];
}

CallHeader make_header(const Call& call, uint64_t sequence, uint8_t algorithm) {
  if (call.part_of != nullptr) {
    CallHeader header = make_header(*call.part_of, sequence, algorithm);
    header.signature += call.signature;
    header.balance = call.balance;  // of this step's messages
    return header;
  }
  CallHeader header{};
  header.sequence = sequence;
  header.count = call.count;
  header.root = call.root;
  header.kind = static_cast<uint8_t>(call.kind);
  header.dtype = static_cast<uint8_t>(call.dtype);
  header.op = static_cast<uint8_t>(call.op);
  header.algorithm = algorithm;
  header.signature = call.signature;
  header.balance = call.balance;
  return header;
}

}  // namespace fastcomm
