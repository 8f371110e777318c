#include "c10d/engines/native/work.h"

#include "c10d/life/exception.h"
#include "c10d/life/hooks.h"
#include "c10d/life/without_gil.h"

namespace fastcomm {

NativeWork::NativeWork(std::shared_ptr<Communicator> group, Held&& held, About&& about)
    : GroupWork(about.rank, about.type, std::move(about.continuations)),
      group_(std::move(group)),
      held_(std::move(held)),
      value_(std::move(about.value)) {}

c10::intrusive_ptr<NativeWork> NativeWork::start(std::shared_ptr<Communicator> group,
                                                 const Call& call, Milliseconds timeout,
                                                 Held&& held, About&& about) {
  auto work = c10::make_intrusive<NativeWork>(std::move(group), std::move(held), std::move(about));
  // The operation holds the work, and through it the tensors, until it is done.
  work->operation_ = work->group_->start(
      call, timeout,
      [work](const Operation&, const std::exception_ptr& error) { work->complete(error); });
  work->sequence_ = work->operation_->header().sequence;
  return work;
}

c10::intrusive_ptr<NativeWork> NativeWork::failed(const std::exception_ptr& error, Held&& held,
                                                  About&& about) {
  auto work = c10::make_intrusive<NativeWork>(nullptr, std::move(held), std::move(about));
  work->complete(error);
  return work;
}

void NativeWork::complete(const std::exception_ptr& error) {
  std::exception_ptr translated = as_torch_error(error);
  if (translated == nullptr) translated = caught([&] { held_.write_back(); });
  finish(translated);
  settle_future(*future_, translated, value_);
}

bool NativeWork::wait(std::chrono::milliseconds timeout) {
  if (!isCompleted()) {
    const WithoutGil no_gil;
    translating([&] { group_->wait(*operation_, deadline_of_wait(timeout), g_interrupt_check); });
  }
  if (const auto error = exception()) std::rethrow_exception(error);
  return true;
}

}  // namespace fastcomm
