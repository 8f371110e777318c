// Negative controls: rules of the protocol that a test build leaves out on demand.
//
// A sanitizer's silence means something only if it speaks where a rule is broken. Builds with
// FC_CONTROLS look at $FC_CONTROL once, before main, and leave out the one rule that it names; the
// tests demand a report then. One build serves the test and all of its controls. In every other
// build FC_LEFT_OUT is a constant and costs nothing.
#pragma once

#include <cstdint>

namespace fastcomm {

/// A rule that can be left out. The names below are what $FC_CONTROL says, in the same order.
enum class Control : uint8_t {
  kNone,
  kWeakenPublish,       // a flag is published with relaxed order
  kWeakenWait,          // a flag is read with relaxed order
  kNoBarrier,           // a block publishes, or agrees, without its barrier
  kNoLaneBarrier,       // the tree over the columns of a norm has no barriers
  kShareChunks,         // two blocks work on the same chunks
  kBlindProbe,          // a probe of peer access does not look at what it found
  kForgetHelloLength,   // a handshake's length is not checked
  kForgetRecordLength,  // a record's length is not checked
  kDropReady,           // no stream waits for a kind of mark (devices/device_set.h),
  kDropStaged,          // which follow in the order of `Mark`
  kDropWorked,
  kDropFinished,
  kDropDrained,
  kRelaxStamp,  // a word of the rings of messages (engines/cpu/peer_ring.h) is published with relaxed
  kRelaxTaken,  // order,
  kRelaxFilled,
  kRelaxDrained,
  kRelaxStampLook,  // or looked at with relaxed order
  kRelaxTakenLook,
  kRelaxFilledLook,
  kRelaxDrainedLook,
  kForgetUse,    // memory of another stream is used and not recorded (tensors/accelerator.h)
  kFreeEarly,    // tensors that operations on devices make for themselves go before they are used
  kSkipOpening,  // ranks do not meet before they use each other's windows (engines/cuda/meeting.h),
  kSkipClosing,  // or not afterwards
  kWorkOn,       // kernels after a failure do what they would have done (kernels/channel.h)
  kLeaveAlone,   // a window is freed before the hosts have met (transport/ipc/windows.h)
  kBlindMeeting,  // a meeting does not compare what the ranks have called
  kRunAhead,      // an operation on a group's stream does not wait for its caller's,
  kOvertake,      // nor an operation for the one before it, which another stream has,
  kWaitForNone,   // nor a caller who waits for one; or
  kLetGoEarly,    // its tensors go when it has been enqueued (c10d/engines/cuda/cuda_group.h)
  kShareStreams,  // memory that was one stream's is given to another one (transport/ipc/pool_blocks.h)
  kOneSlot,       // short operations between devices all use one slot (engines/cuda/short.h)
  kLeaveEarly,  // a rank skips meetings in rounds that only others have (engines/cuda/pairs.h)
  kNoSecondLook,  // who reduces peers' tensors does not check whether one gave up (engines/cpu/operation.h)
  kNoFirstLook,  // a call does not check whether the group was given up before it (engines/cpu/communicator.h)
};

constexpr const char* kControlNames[] = {
    "none",
    "weaken_publish",
    "weaken_wait",
    "no_barrier",
    "no_lane_barrier",
    "share_chunks",
    "blind_probe",
    "forget_hello_length",
    "forget_record_length",
    "drop_ready",
    "drop_staged",
    "drop_worked",
    "drop_finished",
    "drop_drained",
    "relax_stamp",
    "relax_taken",
    "relax_filled",
    "relax_drained",
    "relax_stamp_look",
    "relax_taken_look",
    "relax_filled_look",
    "relax_drained_look",
    "forget_use",
    "free_early",
    "skip_opening",
    "skip_closing",
    "work_on",
    "leave_alone",
    "blind_meeting",
    "run_ahead",
    "overtake",
    "wait_for_none",
    "let_go_early",
    "share_streams",
    "one_slot",
    "leave_early",
    "no_second_look",
    "no_first_look",
};

}  // namespace fastcomm

#if defined(FC_CONTROLS)
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fastcomm {

/// The control that the environment names. A name of no control would test nothing.
inline Control control_of_environment() {
  const char* wanted = std::getenv("FC_CONTROL");
  if (wanted == nullptr) return Control::kNone;
  uint8_t number = 0;
  for (const char* name : kControlNames) {
    if (std::strcmp(name, wanted) == 0) return static_cast<Control>(number);
    ++number;
  }
  std::fprintf(stderr, "FC_CONTROL=%s: there is no such control, see core/control.h\n", wanted);
  std::abort();
}

/// Written before main and never again, so that reading it orders nothing.
inline const Control left_out_control = control_of_environment();

}  // namespace fastcomm
#define FC_LEFT_OUT(control) (::fastcomm::left_out_control == (control))
#else
#define FC_LEFT_OUT(control) (static_cast<void>(control), false)
#endif
