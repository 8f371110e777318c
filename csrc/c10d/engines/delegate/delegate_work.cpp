#include "c10d/engines/delegate/delegate_work.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <thread>

#include "c10d/engines/delegate/wait_slices.h"
#include "c10d/life/exception.h"
#include "c10d/life/hooks.h"
#include "c10d/life/watch.h"
#include "c10d/life/without_gil.h"
#include "core/call_site.h"
#include "core/thread_name.h"

namespace fastcomm {
namespace {

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty() || tensors[0].is_cpu()) return {};
  return {tensors[0].device()};
}

/// Nothing, if the work has none.
GroupWork::FuturePtr future_of(::c10d::Work& work) {
  try {
    return work.getFuture();
  } catch (const std::exception&) {
    return nullptr;
  }
}

}  // namespace

DelegateWork::DelegateWork(Call call, WorkPtr inner)
    : GroupWork(call.delegate->rank(), call.type, call.continuations),
      call_(std::move(call)),
      inner_(std::move(inner)),
      future_(make_future(devices_of(call_.outputs))) {}

c10::intrusive_ptr<DelegateWork> DelegateWork::start(Call call, WorkPtr inner) {
  auto work = c10::make_intrusive<DelegateWork>(std::move(call), std::move(inner));
  work->begin();
  if (!work->in_slices()) work->follow();
  return work;
}

void DelegateWork::begin() {
  if (on_device()) return;  // its watch knows of it
  using Weak = c10::weak_intrusive_ptr<DelegateWork>;
  const auto held = c10::intrusive_ptr<DelegateWork>::reclaim_copy(this);
  auto fail = [weak = Weak(held)](const std::exception_ptr& why) {
    if (const auto work = weak.lock()) work->fail(why);
  };
  call_.delegate->begin(call_.subject, in_slices(), std::move(fail));
}

c10::intrusive_ptr<DelegateWork> DelegateWork::failed(Call call, const std::exception_ptr& error) {
  auto work = c10::make_intrusive<DelegateWork>(std::move(call), nullptr);
  work->complete(error, {});
  return work;
}

c10::intrusive_ptr<DelegateWork> DelegateWork::aside(Call call, std::function<void()> body) {
  auto work = c10::make_intrusive<DelegateWork>(std::move(call), nullptr);
  work->begin();
  work->run_aside(std::move(body));
  return work;
}

bool DelegateWork::in_slices() const {
  return !on_device() && (call_.type == ::c10d::OpType::SEND || call_.type == ::c10d::OpType::RECV);
}

void DelegateWork::follow() {
  const auto held = c10::intrusive_ptr<DelegateWork>::reclaim_copy(this);
  const FuturePtr inner = future_of(*inner_);
  if (on_device()) {
    if (inner == nullptr) return;
    settles_later_ = true;
    return inner->addCallback([held](c10::ivalue::Future& future) {
      if (!future.hasError()) return held->settle(nullptr, future.value());
      // Not the work's own error: another thread may be about to set that.
      const auto error = held->call_.delegate->failed(held->call_.subject, future.exception_ptr());
      held->complete(error, {});
      held->settle(as_torch_error(error), {});
    });
  }
  if (inner == nullptr) {
    // Gloo's reduce_scatter: it does its last part in wait(), and does not tell when it could.
    return run_aside([inner = inner_] { inner->wait(); });
  }
  inner->addCallback([held](c10::ivalue::Future& future) {
    if (future.hasError()) return held->ended(future.exception_ptr());
    held->ended(nullptr, future.value());
  });
}

void DelegateWork::run_aside(std::function<void()> body) {
  std::optional<c10::Stream> stream;
  for (const c10::Device device : devices_of(call_.outputs)) {
    stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  }
  auto run = [held = c10::intrusive_ptr<DelegateWork>::reclaim_copy(this), body = std::move(body),
              caller = at::ThreadLocalState(), stream] {
    name_thread("fc-aside");
    const auto error = caught([&] {
      const at::ThreadLocalStateGuard as_the_caller(caller);
      const c10::OptionalStreamGuard in_its_stream(stream);
      body();
    });
    held->ended(error, c10::IValue(held->call_.outputs));
  };
  start_thread(call_.delegate->front(call_.subject) + "no thread can be started: ", std::move(run))
      .detach();
}

void DelegateWork::ended(const std::exception_ptr& error, const c10::IValue& value) {
  complete(error == nullptr ? nullptr : call_.delegate->failed(call_.subject, error), value);
}

void DelegateWork::complete(const std::exception_ptr& error, const c10::IValue& value) {
  if (claimed_.exchange(true)) return;
  call_.delegate->end(call_.subject);
  const std::exception_ptr translated = as_torch_error(error);
  finish(translated);
  if (translated != nullptr || !settles_later_) settle(translated, value);
}

void DelegateWork::settle(const std::exception_ptr& error, const c10::IValue& value) {
  if (!settled_.exchange(true)) settle_future(*future_, error, value);
}

bool DelegateWork::isCompleted() {
  if (is_over()) return true;
  if (in_slices()) wait_aside();
  return false;
}

bool DelegateWork::is_over() {
  if (!on_device()) return Work::isCompleted() && future_->completed();
  if (Work::isCompleted() || inner_ == nullptr) return Work::isCompleted();
  if (const auto failure = call_.delegate->failure()) {
    complete(failure, {});
    return Work::isCompleted();
  }
  bool done = false;
  // CUDA raises for every event once a kernel has crashed: also on the watch's thread, which must
  // not end the process.
  if (const auto error = caught([&] { done = inner_->isCompleted(); })) {
    complete(call_.delegate->lost(call_.subject, error), {});
  } else if (done) {
    ended(inner_->exception(), c10::IValue(call_.outputs));
  }
  return Work::isCompleted();
}

bool DelegateWork::wait(std::chrono::milliseconds timeout) {
  const WithoutGil no_gil;
  if (on_device() || !is_over()) {
    const Deadline deadline = deadline_of_wait(timeout);
    translating([&] {
      if (on_device()) return wait_on_device(deadline);
      in_slices() && !followed_.load() ? wait_in_slices(deadline) : wait_for_end(deadline);
    });
  }
  // Callers take the future's value next, as DDP does. Whoever ends this work settles the future
  // right after, and then runs what hangs on it, so a wait in there finds it complete.
  if (!on_device()) future_->wait();
  if (const auto error = exception()) std::rethrow_exception(error);
  if (!on_device()) synchronize();
  return !aborted_.load();
}

void DelegateWork::wait_for_end(Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!cv_.wait_for(lock, WaitSlices::kSlice, [&] { return completed_; })) {
    lock.unlock();
    look_around(deadline);
    lock.lock();
  }
}

void DelegateWork::wait_on_device(Deadline deadline) {
  // A wait with a timeout may end the backend when it expires.
  while (!is_over() && deadline != Deadline::max()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    look_around(deadline);
  }
  if (inner_ == nullptr || exception() != nullptr) return;
  if (const auto error = caught([&] { inner_->wait(); })) {
    ended(error);
    while (!Work::isCompleted()) std::this_thread::yield();  // another thread is completing it
  }
}

void DelegateWork::wait_in_slices(Deadline deadline) {
  const Deadline limit = deadline_after(call_.timeout);
  while (!is_over()) {
    bool done = false;
    if (const auto error = caught([&] { done = WaitSlices::wait(*inner_); })) {
      ended(error);
    } else if (done || aborted_.load()) {
      complete(nullptr, c10::IValue(call_.outputs));
    } else if (const auto failure = call_.delegate->failure()) {
      complete(failure, {});
    } else if (const auto without = call_.delegate->departed_from(call_.subject)) {
      complete(without, {});
    }
    if (is_over()) return;  // else another thread is about to complete it
    look_around(deadline);
    if (Clock::now() > limit) {
      complete(call_.delegate->give_up(
                   call_.subject, ErrorCode::kTimeout,
                   concat(call_.delegate->kind().name, ": ", timed_out(call_.timeout),
                          at_site(call_.subject.site),
                          ". Look what the peer is doing, or raise timeout=; this process group "
                          "cannot be used any more")),
               {});
    }
  }
}

void DelegateWork::look_around(Deadline deadline) {
  try {
    if (g_interrupt_check) g_interrupt_check();
  } catch (...) {  // Ctrl-C: the peers cannot finish without this rank
    complete(call_.delegate->give_up(
                 call_.subject, ErrorCode::kPoisoned,
                 concat("rank ", rank_, " was interrupted in ", call_.subject.operation)),
             {});
    throw;
  }
  call_.delegate->look_at_wait(warning_, call_.subject);
  if (Clock::now() > deadline && !is_over()) {
    throw Error(ErrorCode::kTimeout, call_.delegate->front(call_.subject) +
                                         "wait() reached its timeout; the operation goes on");
  }
}

void DelegateWork::synchronize() {
  if (inner_ != nullptr) inner_->synchronize();
}

void DelegateWork::abort() {
  if (inner_ == nullptr || is_over()) return;
  aborted_.store(true);
  inner_->abort();
}

GroupWork::FuturePtr DelegateWork::getFuture() {
  if (in_slices() && !is_over()) wait_aside();
  return future_;
}

void DelegateWork::wait_aside() {
  if (followed_.exchange(true)) return;
  translating([&] {
    run_aside([held = c10::intrusive_ptr<DelegateWork>::reclaim_copy(this)] {
      held->wait_in_slices(Deadline::max());
    });
  });
}

std::vector<at::Tensor> DelegateWork::result() {
  if (!is_over() || inner_ == nullptr) return call_.outputs;
  try {
    return inner_->result();
  } catch (const std::exception&) {  // the backend names no outputs
    return call_.outputs;
  }
}

int DelegateWork::sourceRank() const {
  return inner_ == nullptr ? ::c10d::Work::sourceRank() : inner_->sourceRank();
}

}  // namespace fastcomm
