#include "c10d/engines/hosts/wire.h"

#include <ATen/ops/from_blob.h>

#include "c10d/engines/delegate/wait_slices.h"

namespace fastcomm {
namespace {

constexpr int kFirstTag = 0x7ffffe00;  // of tags that nobody uses; those of Delegate's end follow
// A kind of early data for every power of two that a size can be.
static_assert(kFirstTag + static_cast<int>(Mail::kEarly) + 64 <= 0x7fffff00);

int tag_of(Mail mail) { return kFirstTag + static_cast<int>(mail); }

at::Tensor as_tensor(void* data, size_t bytes) {
  return at::from_blob(data, {static_cast<int64_t>(bytes)}, at::kByte);
}

}  // namespace

Wire::Message Wire::send(int rank, Mail mail, const void* data, size_t bytes) {
  if (bytes == 0) return {};
  std::vector<at::Tensor> sent{as_tensor(const_cast<void*>(data), bytes)};
  auto work = gloo_->send(sent, rank, tag_of(mail));
  return {std::move(sent[0]), std::move(work)};
}

Wire::Message Wire::receive(int rank, Mail mail, void* data, size_t bytes) {
  if (bytes == 0) return {};
  std::vector<at::Tensor> expected{as_tensor(data, bytes)};
  auto work = gloo_->recv(expected, rank, tag_of(mail));
  return {std::move(expected[0]), std::move(work)};
}

void Wire::wait(Message& message, const std::function<void()>& look) {
  if (message.work == nullptr) return;
  while (!WaitSlices::wait(*message.work)) look();
  message = {};
}

void Wire::wait(std::vector<Message>& messages, const std::function<void()>& look) {
  for (Message& each : messages) wait(each, look);
  messages.clear();
}

}  // namespace fastcomm
