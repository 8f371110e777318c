#include "c10d/engines/cuda/cuda_group.h"
#if defined(FC_DEVICES)
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "c10d/engines/cuda/trial.h"
#include "c10d/life/exception.h"
#include "coll/operations.h"
#include "core/beside_captures.h"
#include "core/call_site.h"
#include "core/device_guard.h"
#include "core/env.h"
#include "kernels/cuda/multi_gradient.h"
#include "tensors/captures.h"
#include "transport/ipc/pinned_memory.h"

namespace fastcomm {
namespace {

uint64_t nanoseconds(Milliseconds timeout) {
  return static_cast<uint64_t>(std::chrono::nanoseconds(countable(timeout)).count());
}

/// Of high priority: an operation is several dependent launches, each of which would otherwise
/// queue behind blocks of computations that were there first.
c10::Stream stream_of_pool(int device) {
  return c10::impl::VirtualGuardImpl(kAccelerator)
      .getStreamFromGlobalPool(accelerator_device(device), /*isHighPriority=*/true);
}

/// failure_text, without the trace that torch adds to its own errors.
template <class Body>
std::string problem_in(const Body& body) {
  try {
    body();
    return "";
  } catch (const std::exception&) {
    return what_of(std::current_exception());
  }
}

}  // namespace

void Flight::block(const c10::Stream& waiting) {
  if (FC_LEFT_OUT(Control::kWaitForNone)) return;
  if (about.capture != 0 && capture_of(waiting) != about.capture) return;
  end_.block(waiting);
  if (waiting == caller_) let_go();
}

void Flight::let_go() {
  Held gone;  // without the lock: tensors may be Python's
  const std::lock_guard<std::mutex> lock(mutex_);
  std::swap(gone, held_);
}

void Flight::set_over(const std::exception_ptr& failure) {
  if (failure == nullptr) ended_well_.store(true, std::memory_order_release);
  // The lock decides: end_with() had it before, and what it told is here; or has it later, and sees
  // that this is over, and how.
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(over_, true)) return;
  failure_ = failure;
  std::exchange(written_, {}).end(failure);
}

void Flight::end_with(const CallEnd& end) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // No host sees what is replayed: a captured call has ended when it is captured.
  over_ || about.capture != 0 ? end.end(failure_) : void(written_ = end);
}

CudaGroup::CudaGroup(OutOfBand& out_of_band, std::shared_ptr<Communicator> beside, int device,
                     Options options)
    : device_(device),
      options_(std::move(options)),
      beside_(std::move(beside)),
      stream_(stream_of_pool(device)),
      marks_(stream_of_pool(device)) {
  const BesideCaptures others(device);
  PeerCollectives::Options made;
  made.channels = kChannels;
  made.replayed = kCaptured;
  made.slot_bytes = options_.slot_bytes;
  made.area_bytes = options_.area_bytes;
  made.blocks = options_.blocks;
  made.pushes = !options_.pulls;
  if (options_.home == WindowHome::kHost) {
    made.area_bytes = std::min(made.area_bytes, kMostOfHost);
    made.pushes = false;
    made.slices_from = 0;  // nobody reads the root's memory
  }
  const uint64_t bytes = PeerCollectives::window_bytes(made, beside_->size());
  DeviceWay way = DeviceWay::kHandle;
  if (options_.home == WindowHome::kDevices) {
    DeviceWindowsFound found =
        make_device_windows(out_of_band, beside_->rank(), device, bytes, options_.ways);
    windows_ = std::move(found.windows);
    way = found.way;
    if (!found.why_not.empty()) {
      how_ = concat(". Mapped by ", device_way_name(way), ", not by ", found.why_not);
    }
  } else {
    auto memory =
        std::make_unique<PinnedMemory>(device, Endpoint::instance(), beside_->transport());
    windows_ =
        std::make_unique<DeviceWindows>(out_of_band, beside_->rank(), std::move(memory), bytes);
  }
  // A failure from here on may be on this rank alone: all report their outcome.
  std::unique_ptr<Trial> trial;
  const auto make = [&] {
    void* word = nullptr;
    FC_CUDA(cudaHostAlloc(&word, sizeof(uint32_t), cudaHostAllocMapped), "an abort word");
    abort_word_.reset(static_cast<uint32_t*>(word));
    *abort_word_ = 0;
    made.bounds = {nanoseconds(options_.timeout), abort_word_.get()};
    if (made.blocks == 0) {
      made.blocks = PeerCollectives::default_blocks(device, options_.home == WindowHome::kHost);
    }
    if (options_.home == WindowHome::kDevices && made.pushes) {
      pool_ = std::make_shared<GroupPool>(way, device, beside_->rank(), beside_->size(),
                                          options_.pool_bytes);
    }
    collectives_ = std::make_unique<PeerCollectives>(*windows_, made,
                                                     pool_ == nullptr ? nullptr : &pool_->peers());
    load_gradients_of_one();  // as PeerCollectives loads its own
    trial = std::make_unique<Trial>(*collectives_, *beside_, stream_, abort_word_.get());
  };
  std::string text = problems_of_all(out_of_band, problem_in(make));
  if (text.empty()) {
    text = problems_of_all(
        out_of_band, problem_in([&] { trial->run(kEager, nanoseconds(options_.timeout) / 2); }));
  }
  next_number_ = collectives_ == nullptr ? 0 : collectives_->next_number(kEager);
  if (text.empty()) return;
  collectives_.reset();
  windows_->leave(out_of_band);
  throw Error(ErrorCode::kSystem, text);
}

FlightPtr CudaGroup::submit(Prepared made, Milliseconds timeout, bool async) {
  std::string site = call_site();  // takes the interpreter's lock: before any of this group's
  const std::lock_guard<std::mutex> lock(submitting_);
  if (left_) {
    throw Error(ErrorCode::kPoisoned,
                concat("[rank ", beside_->rank(), " of ", beside_->size(), ", ",
                       op_kind_name(made.call.kind),
                       "] this process group was destroyed; create a new one"));
  }
  const c10::Stream caller = current_stream(device_);
  const uint64_t capture = capture_of(caller);
  const c10::Stream& stream = async && capture == 0 ? stream_ : caller;
  order(caller, stream, capture);  // if it raises, nothing was enqueued
  const OpKind kind = made.call.kind;
  std::exception_ptr error;
  uint64_t number = 0;
  bool enqueued = false;
  try {
    number = collectives_->enqueue(made.call, capture == 0 ? kEager : kCaptured,
                                   native_stream(stream), nanoseconds(timeout));
    enqueued = true;
    const c10::StreamGuard in_its_order(stream);
    made.held.write_back();
  } catch (const Error& raised) {
    if (!enqueued && raised.code() != ErrorCode::kSystem) throw;  // then nothing was enqueued
    error = std::current_exception();
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  FlightPtr flight;
  try {
    // Also for a call that was enqueued in part: its tensors are in use.
    flight = std::make_shared<Flight>(Flight::About{kind, number, capture, std::move(site)},
                                      std::move(made.held), caller, stream);
    // Users of that stream come after it already.
    if (stream == caller || FC_LEFT_OUT(Control::kLetGoEarly)) flight->let_go();
    if (capture != 0) {
      last_captured_ = flight;
    } else {
      last_ = flight;
      ++issued_;
      // Relaxed: what a record shows until it is told its number; nothing is ordered by it.
      next_number_.store(number + 1, std::memory_order_relaxed);
      const std::lock_guard<std::mutex> flying(flying_);
      flights_.push_back(flight);
    }
  } catch (const std::exception&) {
    if (error == nullptr) error = std::current_exception();
    // No event tells when the device is done with them.
    static_cast<void>(new Held(std::move(made.held)));
  }
  if (error != nullptr) {
    std::rethrow_exception(give_up(op_kind_name(kind), ErrorCode::kSystem, what_of(error)));
  }
  return flight;
}

at::Tensor CudaGroup::empty(at::IntArrayRef sizes, at::ScalarType dtype, PoolOutOfBand& out_of_band,
                            const std::function<void()>& interrupted, std::string& why) {
  const DeviceGuard guard(device_);
  if (pool_ == nullptr) {
    why = options_.pulls ? "results are pulled (FASTCOMM_DEVICE_RESULTS, or as tuned)"
                         : "the ranks' devices do not reach each other's memory";
  }
  if (failure() != nullptr) why = "the process group has failed";
  if (is_capturing(device_)) why = "the stream is being captured into a graph";
  if (!why.empty()) return {};
  const uint64_t bytes = GroupPool::bytes_of(sizes, dtype);
  const std::lock_guard<std::mutex> lock(growing_);
  at::Tensor tensor = pool_->empty(sizes, dtype);
  if (tensor.defined() || bytes == 0) return tensor;
  if (why_no_growth_.empty()) {
    // Tensors that the device is done with may not have been let go of yet, here or on another
    // rank.
    if (pool_->has_tensors()) {
      settle(interrupted);
      tensor = pool_->empty(sizes, dtype);
      if (tensor.defined()) return tensor;
    }
    why_no_growth_ = grow(bytes, out_of_band);
    if (!why_no_growth_.empty()) {
      TORCH_WARN("fastcomm: from now on tensors that process groups make for themselves on device ",
                 device_, " are staged by their operations: ", why_no_growth_);
    }
  }
  why = why_no_growth_;
  return why.empty() ? pool_->empty(sizes, dtype) : tensor;
}

void CudaGroup::settle(const std::function<void()>& interrupted) {
  const Deadline end = Clock::now() + kPatience;
  if (!drain(interrupted, end)) return;
  while (looks_.load() != 0 && Clock::now() < end) std::this_thread::sleep_for(Milliseconds(1));
}

std::string CudaGroup::grow(uint64_t bytes, PoolOutOfBand& out_of_band) {
  if (!pool_->may_grow(bytes)) return "FASTCOMM_POOL_MB allows no more";
  // Held to the end: calls of other threads come after it, on all ranks.
  const std::lock_guard<std::mutex> lock(submitting_);
  if (left_) return "the process group was destroyed";
  bool all_come = false;
  if (const auto error = caught([&] { all_come = out_of_band.all_come(issued_, kPatience); })) {
    return concat("the process group's store fails: ", what_of(error));
  }
  if (!all_come) {
    return concat("not all ranks have asked for such memory within ", kPatience.count() / 1000,
                  " s, after the same operations");
  }
  // Earlier operations are over once all are here; handles are opened while nothing waits.
  const std::string problem = problem_in([&] {
    if (!drain({})) throw Error(ErrorCode::kSystem, "its device does not end what it was given");
    const std::string why_not = await_captures({});
    if (!why_not.empty()) throw Error(ErrorCode::kSystem, why_not);
    await_replays();
  });
  std::string text;
  uint64_t most = 0;
  const std::vector<std::string> all =
      out_of_band.all_gather(problem.empty() ? std::to_string(bytes) : "!" + problem);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank][0] == '!') {
      text = concat("rank ", rank, ": ", all[rank].substr(1));
    } else {
      most = std::max<uint64_t>(most, std::stoull(all[rank]));
    }
  }
  if (!text.empty()) return text;
  try {
    const BesideCaptures others(device_);
    pool_->grow(out_of_band, most, [&](char* memory) {
      const auto run = [&] {
        Trial(*collectives_, *beside_, stream_, abort_word_.get(), memory)
            .run(kEager, nanoseconds(options_.timeout) / 2);
      };
      const std::string wrong = problems_of_all(out_of_band, problem_in(run));
      if (!wrong.empty()) throw Error(ErrorCode::kSystem, wrong);
    });
  } catch (const Error& error) {
    if (beside_->failure() != nullptr) throw;
    return error.what();
  }
  return "";
}

void CudaGroup::order(const c10::Stream& caller, const c10::Stream& stream, uint64_t capture) {
  if (capture != 0) {
    note_capture(caller);
    captures_ = true;
    // From another capture: CUDA refuses to wait for it.
    if (last_captured_ != nullptr && last_captured_->about.capture != capture)
      last_captured_.reset();
    if (last_captured_ != nullptr && last_captured_->stream != stream)
      last_captured_->block(stream);
    return;
  }
  if (stream != caller && !FC_LEFT_OUT(Control::kRunAhead)) {
    c10::Event ready(kAccelerator);
    ready.record(caller);
    ready.block(stream);
  }
  if (last_ != nullptr && last_->stream != stream && !FC_LEFT_OUT(Control::kOvertake)) {
    last_->block(stream);
  }
}

}  // namespace fastcomm
#endif
