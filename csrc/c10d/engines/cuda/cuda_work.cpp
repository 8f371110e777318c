#include "c10d/engines/cuda/cuda_work.h"
#if defined(FC_DEVICES)
#include <thread>
#include <utility>

#include "c10d/life/exception.h"
#include "c10d/life/hooks.h"
#include "c10d/life/without_gil.h"

namespace fastcomm {

CudaWork::CudaWork(Call call, FlightPtr flight)
    : GroupWork(call.rank, call.type, call.continuations),
      call_(std::move(call)),
      flight_(std::move(flight)) {}

c10::intrusive_ptr<CudaWork> CudaWork::failed(Call call, const std::exception_ptr& error) {
  auto work = c10::make_intrusive<CudaWork>(std::move(call), nullptr);
  work->end(error);
  return work;
}

void CudaWork::end(const std::exception_ptr& error) {
  const std::exception_ptr translated = as_torch_error(error);
  const std::lock_guard<std::mutex> lock(future_mutex_);
  if (!Work::isCompleted()) finish(translated);
}

bool CudaWork::isCompleted() {
  if (Work::isCompleted()) return true;
  const bool over = flight_ == nullptr || call_.group->is_over(*flight_);
  if (flight_ != nullptr && flight_->ended_well()) {
    end(nullptr);
  } else if (const auto error = call_.group->failure()) {
    end(error);
  } else if (over) {
    end(nullptr);
  }
  return Work::isCompleted();
}

bool CudaWork::wait(std::chrono::milliseconds timeout) {
  const WithoutGil no_gil;
  if (timeout != kNoTimeout) translating([&] { wait_on_host(deadline_of_wait(timeout)); });
  const bool settled = Work::isCompleted() || (flight_ != nullptr && flight_->ended_well());
  if (const auto error = settled ? nullptr : call_.group->failure()) end(error);
  if (const auto error = exception()) {
    call_.group->tell();
    std::rethrow_exception(error);
  }
  if (flight_ != nullptr) flight_->block(current_stream(call_.group->device()));
  return true;
}

void CudaWork::wait_on_host(Deadline deadline) {
  while (!isCompleted()) {
    try {
      if (g_interrupt_check) g_interrupt_check();
    } catch (...) {  // Ctrl-C: the caller gives it up, and the peers are to know
      end(call_.group->give_up(call_.name, ErrorCode::kPoisoned,
                               concat("rank ", call_.rank, " was interrupted in ", call_.name)));
      throw;
    }
    if (Clock::now() > deadline) {
      throw Error(ErrorCode::kTimeout,
                  concat("[rank ", call_.rank, ", ", call_.name,
                         "] wait() reached its timeout; the operation goes on"));
    }
    std::this_thread::sleep_for(Milliseconds(1));
  }
}

GroupWork::FuturePtr CudaWork::getFuture() {
  const std::lock_guard<std::mutex> lock(future_mutex_);
  if (future_ == nullptr) future_ = future_of_flight();
  return future_;
}

GroupWork::FuturePtr CudaWork::future_of_flight() {
  auto future = make_future({accelerator_device(call_.group->device())});
  if (const auto error = exception()) {
    future->setError(error);
  } else if (flight_ == nullptr) {
    future->markCompleted(c10::IValue(call_.value));
  } else if (flight_->about.capture != 0) {  // by an event of the same capture
    const c10::StreamGuard in_its_order(flight_->stream);
    future->markCompleted(c10::IValue(call_.value));
  } else {
    // The future marks streams: give it one that does nothing but wait.
    const c10::Stream& marks = call_.group->marks();
    flight_->block(marks);
    const c10::StreamGuard in_its_order(marks);
    future->markCompleted(c10::IValue(call_.value));
  }
  return future;
}

}  // namespace fastcomm
#endif
