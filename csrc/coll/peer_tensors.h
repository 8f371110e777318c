// What ranks give without staging it: tensors that lie in memory which every rank has mapped are read there.
//
// A rank whose tensor lies there stages nothing, and says in its header where. After the wait of step 1, in
// which all headers are read, its peers read there what they would otherwise read from a slot. One step follows,
// which does nothing: its wait says that every rank has read, so that the tensor is its owner's again.
//
// Memory ordering. A tensor was written before its owner published step 0, for which its readers have waited;
// their reads in step 1 come before their publication of it, for which the owner waits before it ends the
// operation. Where the owner gives up before that, its user may write to the tensor while peers still read: they
// check whether a rank gave up before they finish with what they have read (Operation::find_quitter).
#pragma once

#include "coll/plan.h"
#include "coll/schedule.h"
#include "core/control.h"
#include "core/hd.h"
#include "transport/peer_view.h"

namespace fastcomm {

struct PeerTensors {
  const char* own = nullptr;  // this rank's, if it lies there: known before step 0
  bool any = false;           // whether some rank's does: known in step 1
  const char* at[kMaxRanks];  // of each rank, if any does; nullptr: what it gives is in its slot

  FC_HD const char* of(int rank) const { return any ? at[rank] : nullptr; }
  /// Steps of an operation that would otherwise be over in step 1.
  FC_HD uint32_t steps() const { return any && !FC_LEFT_OUT(Control::kNoLastWait) ? 3 : 2; }
};

}  // namespace fastcomm
