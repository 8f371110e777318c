#include "c10d/works/work_of_many.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <ATen/core/ivalue_inl.h>

#include <algorithm>

#include "c10d/life/without_gil.h"
#include "core/clock.h"

namespace fastcomm {

bool WorkOfMany::isCompleted() {
  const bool all = std::all_of(works_.begin(), works_.end(),
                               [](const WorkPtr& work) { return work->isCompleted(); });
  if (!all) return false;
  const FuturePtr future = asked_for();
  return future == nullptr || future->completed();
}

bool WorkOfMany::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(),
                     [](const WorkPtr& work) { return work->isSuccess(); });
}

bool WorkOfMany::wait(std::chrono::milliseconds timeout) {
  const WithoutGil no_gil;
  const bool forever = timeout == kNoTimeout;
  const Deadline deadline = deadline_of_wait(timeout);
  for (const WorkPtr& work : works_) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
    work->wait(forever ? kNoTimeout : std::max(left, Milliseconds(1)));
  }
  // The thread that completes the last of their futures completes this one right after.
  const FuturePtr future = asked_for();
  if (future != nullptr && future->devices().empty()) future->wait();
  return true;
}

std::vector<at::Tensor> WorkOfMany::result() {
  std::vector<at::Tensor> all;
  for (const WorkPtr& work : works_) {
    for (const at::Tensor& tensor : work->result()) all.push_back(tensor);
  }
  return all;
}

GroupWork::FuturePtr WorkOfMany::asked_for() {
  const std::lock_guard<std::mutex> lock(future_mutex_);
  return future_;
}

GroupWork::FuturePtr WorkOfMany::getFuture() {
  if (auto future = asked_for()) return future;
  auto made = future_of_all();
  const std::lock_guard<std::mutex> lock(future_mutex_);
  if (future_ == nullptr) future_ = std::move(made);
  return future_;
}

GroupWork::FuturePtr WorkOfMany::future_of_all() const {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  std::vector<c10::Device> devices;
  for (const WorkPtr& work : works_) {
    const auto future = work->getFuture();
    futures.push_back(future);
    for (const c10::Device device : future->devices()) {
      if (std::find(devices.begin(), devices.end(), device) == devices.end()) {
        devices.push_back(device);
      }
    }
  }
  auto done = make_future(devices);
  collectAll(futures)->addCallback([done, futures, devices](c10::ivalue::Future&) {
    // On devices a future is complete before its value is there: these streams wait for all. Of
    // high priority, as operations are.
    std::vector<c10::Stream> streams;
    for (const c10::Device device : devices) {
      streams.push_back(c10::impl::VirtualGuardImpl(device.type())
                            .getStreamFromGlobalPool(device, /*isHighPriority=*/true));
    }
    const c10::MultiStreamGuard in_their_order(streams);
    std::vector<at::Tensor> all;
    for (const auto& future : futures) {
      const c10::intrusive_ptr<c10::ivalue::Future> each = future;
      if (each->hasError()) return done->setError(each->exception_ptr());
      each->wait();
      for (const at::Tensor& tensor : each->value().toTensorVector()) all.push_back(tensor);
    }
    done->markCompleted(c10::IValue(all));
  });
  return done;
}

}  // namespace fastcomm
