#include "c10d/work_of_many.h"

#include <ATen/core/ivalue_inl.h>

#include <algorithm>

#include "core/clock.h"

namespace fastcomm {

bool WorkOfMany::isCompleted() {
  return std::all_of(works_.begin(), works_.end(),
                     [](const WorkPtr& work) { return work->isCompleted(); });
}

bool WorkOfMany::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(),
                     [](const WorkPtr& work) { return work->isSuccess(); });
}

bool WorkOfMany::wait(std::chrono::milliseconds timeout) {
  const bool forever = timeout == kNoTimeout;
  const Deadline deadline = forever ? Deadline::max() : Clock::now() + timeout;
  for (const WorkPtr& work : works_) {
    if (forever) {
      work->wait();
    } else {
      const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
      work->wait(std::max(left, Milliseconds(1)));
    }
  }
  return true;
}

std::vector<at::Tensor> WorkOfMany::result() {
  std::vector<at::Tensor> all;
  for (const WorkPtr& work : works_) {
    for (const at::Tensor& tensor : work->result()) all.push_back(tensor);
  }
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkOfMany::getFuture() {
  auto done =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const WorkPtr& work : works_) futures.push_back(work->getFuture());
  collectAll(futures)->addCallback([done, futures](c10::ivalue::Future&) {
    std::vector<at::Tensor> all;
    for (const auto& future : futures) {
      const c10::intrusive_ptr<c10::ivalue::Future> each = future;
      if (each->hasError()) return done->setError(each->exception_ptr());
      for (const at::Tensor& tensor : each->value().toTensorVector()) all.push_back(tensor);
    }
    done->markCompleted(c10::IValue(all));
  });
  return done;
}

}  // namespace fastcomm
