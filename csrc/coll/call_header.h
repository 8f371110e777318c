// A rank's description of its current operation: peers read it after the first wait.
#pragma once

#include <cstdint>

#include "core/call_site.h"
#include "core/hd.h"
#include "transport/control_block.h"

namespace fastcomm {

/// Compared by same_call; `where`, `form` and `balance` may differ between ranks.
struct CallHeader {
  uint64_t sequence;
  uint64_t count;
  int32_t root;
  uint8_t kind;   // OpKind
  uint8_t dtype;  // DType
  uint8_t op;     // ReduceOp
  uint8_t algorithm;
  uint64_t where;  // the rank's buffer, in the notation of Transport::locate. Not compared
  uint64_t form;   // of a list: a hash of its tensors' places in that buffer. Not compared
  // Else zero (coll/call.h):
  uint64_t signature;  // everything else that must be equal: types, shapes of a list, a factor
  uint64_t balance;    // of split sizes; sums to zero over all ranks if they fit each other
};
static_assert(sizeof(CallHeader) == 56, "travels between processes");

/// True if two ranks called the same operation.
FC_HD bool same_call(const CallHeader& a, const CallHeader& b) {
  return a.sequence == b.sequence && a.count == b.count && a.root == b.root && a.kind == b.kind &&
         a.dtype == b.dtype && a.op == b.op && a.algorithm == b.algorithm &&
         a.signature == b.signature;
}

/// Room for the part of a call that its header does not state, as text; longer texts are cut off.
constexpr size_t kDetailBytes = 4 * kLineBytes;

/// A header and its texts in a control block: one for each parity of the operation. It is written
/// before step 0 is published and read after the wait of step 1, so the flag orders it; it is
/// written again two operations later, when every rank has left the operation (the argument of
/// coll/all_reduce.h for payload slots).
struct CallNotice {
  alignas(kLineBytes) CallHeader header;
  alignas(kLineBytes) char detail[kDetailBytes];
  alignas(kLineBytes) char site[kSiteBytes];  // written only with FASTCOMM_CALL_SITES
};
static_assert(sizeof(CallNotice) == kNoticeBytes, "fits where the transport has room for it");

inline CallNotice& notice_in(ControlBlock& control, uint64_t sequence) {
  return *reinterpret_cast<CallNotice*>(control.notices[sequence & 1]);
}

}  // namespace fastcomm
