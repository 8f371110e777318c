// Common state of a group's ranks on one device each: windows and collectives between processes,
// operations under way there, and their failures.
//
// Operations have one order, that in which they are issued, on any streams: each waits for the one
// before it, if that was given to another stream. Those that a graph captures have a channel and an
// order of their own, since they run when they are replayed.
//
// Failure. The end of a group on its devices (a rank that does not come, a different call, a launch
// that fails) ends the communicator beside it, and vice versa. Then nothing waits any more: kernels
// that wait see the abort word. Nothing on the host waits for a device except drain().
//
// Only in builds with FC_DEVICES.
#pragma once

#include "tensors/accelerator.h"
#if defined(FC_DEVICES)
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "c10d/engines/cuda/group_pool.h"
#include "c10d/life/flight_recorder.h"
#include "c10d/requests/prepared.h"
#include "core/standstill.h"
#include "core/wait_warning.h"
#include "engines/cpu/communicator.h"
#include "engines/cuda/peer_collectives.h"
#include "transport/ipc/device_ways.h"

namespace fastcomm {

/// An operation that was given to a stream. Thread-safe.
class Flight {
 public:
  /// Description of the call: `number` as PeerCollectives::enqueue, `site` as call_site(),
  /// `capture` as capture_of the caller's device.
  struct About {
    OpKind kind;
    uint64_t number;
    uint64_t capture;  // 0: none
    std::string site;
  };

  ~Flight() { written_.let_go(); }
  Flight(About known, Held held, const c10::Stream& caller, const c10::Stream& stream)
      : since(Clock::now()),
        about(std::move(known)),
        stream(stream),
        caller_(caller),
        held_(std::move(held)) {
    end_.record(stream);
  }

  /// True if the device has done it. Raises c10::Error if the device is lost.
  bool passed() const { return end_.query(); }
  /// True if it is known to have ended well: later failures are not about it.
  bool ended_well() const { return ended_well_.load(std::memory_order_acquire); }
  /// The device has done it, well or in the group's failure.
  void set_over(const std::exception_ptr& failure);
  /// Ends what is written down of the call once it is known to be over.
  void end_with(const CallEnd& end);
  /// Lets the stream wait until it is done. If the operation was issued on that stream, the tensors
  /// are let go: from there on they are in its order, as after any other work in it. For a captured
  /// operation only a stream of the same capture waits: others are ordered with the graph's
  /// replays.
  void block(const c10::Stream& waiting);
  /// Lets the tensors go.
  void let_go();

  const char* name() const { return op_kind_name(about.kind); }

  const Deadline since;
  const About about;
  const c10::Stream stream;
  WaitWarning warning{since};

 private:
  c10::Event end_{kAccelerator};
  const c10::Stream caller_;
  std::atomic<bool> ended_well_{false};
  std::mutex mutex_;  // guards the members below
  Held held_;
  bool over_ = false;  // set_over(); `failure_` tells how
  std::exception_ptr failure_;
  CallEnd written_;
};
using FlightPtr = std::shared_ptr<Flight>;

/// Memory of the ranks' windows.
enum class WindowHome {
  kDevices,  // on each rank's device, which the others reach
  kHost      // in pinned memory of the host
};

/// Thread-safe.
class CudaGroup {
 public:
  struct Options {
    WindowHome home = WindowHome::kDevices;
    std::vector<DeviceWay> ways = {DeviceWay::kHandle};  // to reach those on devices
    uint64_t area_bytes = 0;                             // at most; see PeerCollectives::Options
    uint64_t slot_bytes = 0;                             // likewise
    ChosenBy slot_by = ChosenBy::kDefault;
    int blocks = 0;           // likewise
    bool pulls = false;       // else pushes; nothing is used in place then
    uint64_t pool_bytes = 0;  // most bytes of tensors that are used in place; GroupPool
    Milliseconds timeout{0};
    std::string why = "";  // not on the devices
  };

  /// Collective, as DeviceWindows. `beside` fails together with this group. Raises Error, on all
  /// ranks alike: as DeviceWindows and PeerCollectives do, or if devices see wrong bytes in the
  /// windows.
  CudaGroup(OutOfBand& out_of_band, std::shared_ptr<Communicator> beside, int device,
            Options options);
  CudaGroup(const CudaGroup&) = delete;
  CudaGroup& operator=(const CudaGroup&) = delete;
  /// As leave(); in a child of fork() everything is kept.
  ~CudaGroup();

  int device() const { return device_; }
  const Options& options() const { return options_; }
  /// The way in which devices reach the windows, and the failures of earlier ways: "", or ". Mapped
  /// by ...".
  const std::string& how() const { return how_; }
  /// A stream for marks, which does nothing but wait.
  const c10::Stream& marks() const { return marks_; }
  /// The number of the next operation that is not captured.
  uint64_t next_number() const { return next_number_.load(std::memory_order_relaxed); }
  /// PeerCollectives::is_one_launch.
  bool is_one_launch(const Call& call) const { return collectives_->is_one_launch(call); }
  /// PeerCollectives::reduces.
  bool reduces(DType dtype, ReduceOp op) const { return collectives_->reduces(dtype, op); }

  /// Enqueues an operation: on the current stream, or on the group's own stream after it.
  /// Write-backs come after the operation. Raises Error: a launch fails, and with it the group
  /// (kSystem); as PeerCollectives::enqueue.
  FlightPtr submit(Prepared made, Milliseconds timeout, bool async);

  /// True if an operation is over, well or not. A device that is lost is a failure of the group.
  bool is_over(Flight& flight);

  /// The reason why nothing can be submitted any more; nullptr while something can. Reads the
  /// devices' records.
  std::exception_ptr failure();
  /// The same, as a later call of `operation` reports it.
  std::exception_ptr failed_before(const char* operation);
  /// The failure, if no caller has been told of one yet.
  std::exception_ptr untold() { return told_ ? nullptr : failure(); }
  /// A caller has been told.
  void tell() { told_ = true; }
  /// Gives the group up, here and on the peers; returns the first failure: this, or an earlier one.
  /// `peer` is the rank at fault, `number` the operation's, as in About.
  std::exception_ptr give_up(const char* operation, ErrorCode code, const std::string& what,
                             int peer = -1, std::optional<uint64_t> number = std::nullopt);
  /// The same, for a failure that the peers learn of elsewhere.
  std::exception_ptr note(const std::exception_ptr& error);

  /// A tensor in memory that operations of the group use in place, as GroupPool::empty. If there is
  /// no room the ranks make some, if all of them ask for it at about the same time, and their
  /// devices have done their work; once this has not worked, no rank tries again. Undefined, with
  /// the reason, if there is none. Raises Error if the group fails meanwhile, and the exceptions of
  /// `interrupted`.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype, PoolOutOfBand& out_of_band,
                   const std::function<void()>& interrupted, std::string& why);

  /// A look at the operations under way, repeated by a thread: ends those that cannot go on, and
  /// lets go of those that are over. False if nothing is under way.
  bool look();
  /// The same without a call of CUDA, repeated by one other thread: a thread that waits in the
  /// driver for a device holds up every other one there, look() too. Does nothing while looks end.
  bool look_at_host();
  /// Returns once nothing is under way: true, or false if a device does not stop, or `until` is
  /// past. Raises the exceptions of `interrupted`.
  bool drain(const std::function<void()>& interrupted, Deadline until = Deadline::max());

  /// Lets the windows go when nothing uses them any more; nothing can be submitted from here on.
  /// Waits as drain() does, and for no peer; for operations in graphs it also waits for the end of
  /// known captures on the device. Idempotent.
  void leave(const std::function<void()>& interrupted);

 private:
  static constexpr int kEager = 0, kCaptured = 1, kChannels = 2;
  /// Time to end for operations in which a rank that left in order has taken part.
  static constexpr Milliseconds kLeaverGrace{2000};
  /// Time for a device that has been told to give up.
  static constexpr Milliseconds kStopGrace{10'000};
  /// Time after which looks that do not end are taken to wait in the driver.
  static constexpr Milliseconds kStuck{300};
  /// Longest wait of a rank that wants more memory for the others.
  static constexpr Milliseconds kPatience{5000};
  /// Size of an area in the host's memory, where meetings cost little compared to the transfers.
  static constexpr uint64_t kMostOfHost = uint64_t{4} << 20;

  struct FreePinned {
    void operator()(uint32_t* word) const { static_cast<void>(cudaFreeHost(word)); }
  };

  /// Waits until some thread has let go of everything that the device has done, but no longer than
  /// kPatience: it may wait for a rank that waits for this one.
  void settle(const std::function<void()>& interrupted);
  /// "" or the reason why no memory was added.
  std::string grow(uint64_t bytes, PoolOutOfBand& out_of_band);
  /// Lets `stream` wait for the earlier work of the caller's stream, and for the last operation.
  void order(const c10::Stream& caller, const c10::Stream& stream, uint64_t capture);
  std::exception_ptr recorded();
  /// Place in the program of the operation of that number; "" if not asked for, or if the device
  /// has done it.
  std::string site_of(uint64_t number) const;
  std::exception_ptr noted() const;
  /// Takes out flights that are over; the caller lets them go.
  std::vector<FlightPtr> reap();
  /// Description of an operation under way. No flight, which the host's thread might be the last to
  /// let go of: its event is CUDA's.
  struct Waiting {
    const char* name;
    uint64_t number;
    Deadline since;
  };
  std::optional<Waiting> oldest_waiting() const;
  /// Ends the group if `waiting`, which is not over, cannot end: a rank is dead, or has left for
  /// longer than `grace` after the operation began. Calls no CUDA. False if nothing is under way.
  bool look_at(const std::optional<Waiting>& waiting, Milliseconds grace);
  FlightPtr oldest() const;
  void warn_of_wait(Flight& flight);
  /// For a group with operations in graphs: waits until no capture is known. Returns "", or the
  /// reason why it does not wait longer: a capture of this thread, or one that lasts for kPatience.
  /// Raises the exceptions of `interrupted`.
  std::string await_captures(const std::function<void()>& interrupted);
  /// Then waits until the device has done all replays: only the device knows of these, and their
  /// waits are bounded. Raises c10::Error if the device is lost.
  void await_replays();

  const int device_;
  const Options options_;
  const std::shared_ptr<Communicator> beside_;
  std::unique_ptr<uint32_t, FreePinned> abort_word_;
  std::unique_ptr<DeviceWindows> windows_;
  std::string how_;
  std::shared_ptr<GroupPool> pool_;  // nullptr: windows are not on the devices
  std::unique_ptr<PeerCollectives> collectives_;
  const c10::Stream stream_;  // for asynchronous operations
  const c10::Stream marks_;
  std::atomic<bool> captures_{false};
  std::atomic<uint64_t> next_number_{0};

  std::mutex growing_;         // before submitting_
  std::string why_no_growth_;  // under growing_; "": it may grow

  std::mutex submitting_;  // one operation at a time; before flying_
  FlightPtr last_;
  FlightPtr last_captured_;  // of one capture
  uint64_t issued_ = 0;      // operations that were not captured
  bool left_ = false;
  std::atomic<bool> keeps_{false};  // what devices may use stays allocated

  mutable std::mutex flying_;
  std::deque<FlightPtr> flights_;
  std::atomic<int> looks_{0};      // that may have taken flights out, and not let go of them
  std::atomic<uint64_t> seen_{0};  // looks at the device that have come to an end
  Standstill standstill_;          // of seen_; of the thread that calls look_at_host()

  std::mutex looking_;
  std::optional<Deadline> stalled_since_;  // under looking_

  std::atomic<bool> told_{false};
  std::atomic<bool> failed_{false};  // failure_ is set
  mutable std::mutex noting_;
  std::exception_ptr failure_;
};

}  // namespace fastcomm
#endif
