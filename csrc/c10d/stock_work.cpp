#include "c10d/stock_work.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <system_error>
#include <thread>

#include "c10d/exception.h"
#include "c10d/work.h"

namespace fastcomm {
StockWork::StockWork(std::shared_ptr<Communicator> group, ::c10d::OpType type,
                     const Tensors& outputs, std::shared_ptr<Continuations> continuations,
                     StartStock start_stock)
    : ::c10d::Work(group->rank(), type),
      group_(std::move(group)),
      outputs_(outputs),
      continuations_(std::move(continuations)),
      start_stock_(std::move(start_stock)),
      future_(c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()),
          outputs[0].is_cpu() ? std::vector<c10::Device>()
                              : std::vector<c10::Device>{outputs[0].device()})) {
  const c10::Device device = outputs[0].device();
  if (!device.is_cpu()) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

c10::intrusive_ptr<StockWork> StockWork::start(std::shared_ptr<Communicator> group,
                                               const Call& call, Milliseconds timeout, bool async,
                                               ::c10d::OpType type, const Tensors& outputs,
                                               std::shared_ptr<Continuations> continuations,
                                               StartStock start_stock) {
  auto work = c10::make_intrusive<StockWork>(std::move(group), type, outputs,
                                             std::move(continuations), std::move(start_stock));
  // The operation holds the work until it has met, and while it is open.
  work->operation_ = work->group_->meet(
      call, timeout, async, g_interrupt_check,
      [work](const Operation& operation, const std::exception_ptr& error) {
        work->met(operation, error);
      },
      [work](const Operation&, const std::exception_ptr& error) { work->complete(error); });
  work->sequence_ = work->operation_->header().sequence;
  return work;
}

void StockWork::met(const Operation& operation, const std::exception_ptr& error) {
  const StartStock start_stock = std::move(start_stock_);
  start_stock_ = nullptr;
  if (error != nullptr) {
    group_->close(operation);  // it may have been given up between the meeting and this
    return complete(error);
  }
  try {
    const at::ThreadLocalStateGuard as_the_caller(caller_);
    const c10::OptionalStreamGuard in_its_stream(stream_);
    engine_ = start_stock();
  } catch (...) {
    group_->refuse(operation);
    return complete(std::current_exception());
  }
  watch(operation.shared_from_this());
}

void StockWork::watch(const std::shared_ptr<const Operation>& operation) {
  const auto held = c10::intrusive_ptr<StockWork>::reclaim_copy(this);
  c10::intrusive_ptr<c10::ivalue::Future> engine;
  try {
    engine = engine_->getFuture();
  } catch (const std::exception&) {
    // Gloo's reduce_scatter has none: it does its last part in wait(), and does not say when it could.
    try {
      std::thread([held, operation] { held->wait_aside(*operation); }).detach();
    } catch (const std::system_error&) {  // no thread to be had
      wait_aside(*operation);
    }
    return;
  }
  engine->addCallback([held, operation](c10::ivalue::Future& future) {
    if (future.hasError()) return held->ended(*operation, future.exception_ptr(), {});
    held->ended(*operation, nullptr, future.value());
  });
}

void StockWork::wait_aside(const Operation& operation) {
  std::exception_ptr error;
  try {
    const at::ThreadLocalStateGuard as_the_caller(caller_);
    const c10::OptionalStreamGuard in_its_stream(stream_);
    engine_->wait();
  } catch (...) {
    error = std::current_exception();
  }
  ended(operation, error, c10::IValue(outputs_));
}

void StockWork::ended(const Operation& operation, const std::exception_ptr& error,
                      const c10::IValue& value) {
  if (error == nullptr) {
    group_->close(operation);
    return complete(nullptr, value);
  }
  const EngineError failure(error);
  complete(group_->engine_failed(operation, failure.code, "Gloo failed: " + failure.text));
}

void StockWork::complete(const std::exception_ptr& error, const c10::IValue& value) {
  if (claimed_.exchange(true)) return;  // the group failed while the engine was at work
  const std::exception_ptr translated = as_torch_error(error);
  finish(translated);
  if (translated == nullptr) {
    future_->markCompleted(value);
  } else {
    future_->setError(translated);
  }
}

bool StockWork::wait(std::chrono::milliseconds timeout) {
  if (!isCompleted()) {
    const Deadline deadline = timeout == kNoTimeout ? Deadline::max() : Clock::now() + timeout;
    translating([&] {
      group_->wait(*operation_, deadline, g_interrupt_check);
      wait_for_engine(deadline);
    });
  }
  if (const auto error = exception()) std::rethrow_exception(error);
  synchronize();
  return true;
}

void StockWork::wait_for_engine(Deadline deadline) {
  constexpr Milliseconds kLook{10};
  std::unique_lock<std::mutex> lock(mutex_);
  while (!cv_.wait_for(lock, kLook, [&] { return completed_; })) {
    lock.unlock();
    group_->examine();
    try {
      if (g_interrupt_check) g_interrupt_check();
    } catch (...) {  // Ctrl-C: the peers cannot finish without this rank
      group_->abandon(*operation_, concat("rank ", group_->rank(), " was interrupted in ",
                                          operation_->describe()));
      throw;
    }
    if (Clock::now() > deadline && !isCompleted()) {
      const CallHeader& call = operation_->header();
      throw Error(ErrorCode::kTimeout,
                  message_front(group_->rank(), group_->size(), -1,
                                op_kind_name(static_cast<OpKind>(call.kind)), call.sequence) +
                      "wait() reached its timeout while Gloo works; the operation goes on");
    }
    lock.lock();
  }
}

void StockWork::synchronize() {
  if (stream_ && engine_ != nullptr) engine_->synchronize();
}

std::vector<at::Tensor> StockWork::result() {
  if (!isCompleted() || engine_ == nullptr) return {};
  try {
    return engine_->result();
  } catch (const std::exception&) {  // Gloo's reduce_scatter
    return outputs_;
  }
}

}  // namespace fastcomm
