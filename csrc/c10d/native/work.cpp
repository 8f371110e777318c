#include "c10d/native/work.h"

#include "c10d/exception.h"
#include "c10d/hooks.h"

namespace fastcomm {

NativeWork::NativeWork(std::shared_ptr<Communicator> group, int rank, Payload payload,
                       std::shared_ptr<Continuations> continuations)
    : ::c10d::Work(rank, payload.type, payload.title, payload.shown),
      group_(std::move(group)),
      payload_(std::move(payload)),
      continuations_(std::move(continuations)),
      future_(
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {
}

c10::intrusive_ptr<NativeWork> NativeWork::start(std::shared_ptr<Communicator> group,
                                                 const Call& call, Milliseconds timeout,
                                                 Payload payload,
                                                 std::shared_ptr<Continuations> continuations) {
  const int rank = group->rank();
  auto work = c10::make_intrusive<NativeWork>(std::move(group), rank, std::move(payload),
                                              std::move(continuations));
  // The operation holds the work, and through it the tensors, until it is done.
  work->operation_ = work->group_->start(
      call, timeout,
      [work](const Operation&, const std::exception_ptr& error) { work->complete(error); });
  work->sequence_ = work->operation_->header().sequence;
  return work;
}

c10::intrusive_ptr<NativeWork> NativeWork::failed(int rank, Payload payload,
                                                  const std::exception_ptr& error,
                                                  std::shared_ptr<Continuations> continuations) {
  auto work =
      c10::make_intrusive<NativeWork>(nullptr, rank, std::move(payload), std::move(continuations));
  work->complete(error);
  return work;
}

void NativeWork::complete(const std::exception_ptr& error) {
  std::exception_ptr translated = as_torch_error(error);
  if (translated == nullptr) translated = caught([&] { payload_.write_back(); });
  finish(translated);
  if (translated == nullptr) {
    future_->markCompleted(c10::IValue(payload_.value));
  } else {
    future_->setError(translated);
  }
}

bool NativeWork::wait(std::chrono::milliseconds timeout) {
  if (!isCompleted()) {
    translating([&] { group_->wait(*operation_, deadline_of_wait(timeout), g_interrupt_check); });
  }
  if (const auto error = exception()) std::rethrow_exception(error);
  return true;
}

}  // namespace fastcomm
