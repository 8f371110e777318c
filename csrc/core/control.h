// Negative controls: rules of the protocol that a test build leaves out on demand.
//
// A sanitizer's silence means something only if it reports a broken rule. Builds with FC_CONTROLS
// read $FC_CONTROL once, before main, and leave out the one rule that it names; the tests then
// demand a report. One build serves the test and all of its controls. In every other build
// FC_LEFT_OUT is a constant and costs nothing.
#pragma once

#include <cstdint>

namespace fastcomm {

/// A rule that can be left out. The names below are the values of $FC_CONTROL, in the same order.
enum class Control : uint8_t {
  kNone,
  kWeakenPublish,       // a flag is published with relaxed order
  kWeakenWait,          // a flag is read with relaxed order
  kNoBarrier,           // a block publishes without its barrier
  kBlindProbe,          // a probe of peer access does not look at what it found
  kForgetHelloLength,   // a handshake's length is not checked
  kForgetRecordLength,  // a record's length is not checked
  kDropReady,           // no stream waits for a mark of one kind (devices/device_set.h):
  kDropStaged,          // one control per `Mark`, in its order
  kDropWorked,
  kDropFinished,
  kDropDrained,
  kRelaxStamp,  // words of message rings (engines/cpu/peer_ring.h): stamp published relaxed,
  kRelaxTaken,  // taken cells published relaxed,
  kRelaxFilled,
  kRelaxDrained,
  kRelaxStampLook,  // stamp read relaxed
  kRelaxTakenLook,
  kRelaxFilledLook,
  kRelaxDrainedLook,
  kForgetUse,     // memory of another stream is used and not recorded (tensors/accelerator.h)
  kFreeEarly,     // temporary tensors of device operations are freed before use
  kSkipOpening,   // ranks do not meet before they use windows (engines/cuda/meeting.h)
  kSkipClosing,   // ranks do not meet after they used windows
  kWorkOn,        // kernels do their work even after a failure (kernels/channel.h)
  kLeaveAlone,    // a window is freed before the hosts have met (transport/ipc/windows.h)
  kBlindMeeting,  // a meeting does not compare the ranks' calls
  kRunAhead,      // an operation on a group's stream does not wait for its caller's
  kOvertake,      // an operation does not wait for the previous one on another stream
  kWaitForNone,   // a caller's wait for an operation does nothing
  kLetGoEarly,    // its tensors are freed once enqueued (c10d/engines/cuda/cuda_group.h)
  kShareStreams,  // memory moves from one stream to another (transport/ipc/pool_blocks.h)
  kOneSlot,       // short operations between devices all use one slot (engines/cuda/short.h)
  kLeaveEarly,    // a rank skips meetings of rounds that only others have (engines/cuda/pairs.h)
  // reductions of peers' tensors do not check for a rank that gave up (engines/cpu/operation.h)
  kNoSecondLook,
  // a call does not check for an earlier failure of the group (engines/cpu/communicator.h)
  kNoFirstLook,
  kNoGuard,     // operations of graphs do not take their channel (kernels/channel.h)
  kNoHostLook,  // no thread looks at the host alone (c10d/engines/cuda/cuda_group.h)
  kClearLate,   // a watch forgets that it was woken after its look (c10d/life/watch.h)
  kKeepLinks,   // a forked child keeps its parent's links (transport/tcp/peer_links.h)
  kNotReady,    // the end of a link counts as a death although the peer never had it
  kEvenStamp,   // a record's place is not marked while it is written (core/records.h)
  kUseHeld,     // an operation is used again although somebody holds it
};

constexpr const char* kControlNames[] = {
    "none",
    "weaken_publish",
    "weaken_wait",
    "no_barrier",
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
    "no_guard",
    "no_host_look",
    "clear_late",
    "keep_links",
    "not_ready",
    "even_stamp",
    "use_held",
};

}  // namespace fastcomm

#if defined(FC_CONTROLS)
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fastcomm {

/// The control named by the environment. An unknown name is an error: it would test nothing.
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

/// Written before main and never again, so reading it needs no order.
inline const Control left_out_control = control_of_environment();

}  // namespace fastcomm
#define FC_LEFT_OUT(control) (::fastcomm::left_out_control == (control))
#else
#define FC_LEFT_OUT(control) (static_cast<void>(control), false)
#endif
