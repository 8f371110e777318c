// Messages between hosts, by the sends and receives of Gloo, which moves bytes and adds nothing.
//
// A receive should be posted before its message is sent: Gloo asks for a message only once it is
// expected, so one that is posted late costs a round trip. Who moves the bytes is this file's
// business alone. Another backend of torch's with sends and receives (MPI, UCC) could, if its waits
// return now and then, as WaitSlices makes Gloo's.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace fastcomm {

/// The kinds of messages between two ranks. Those of one kind arrive in the order in which they are
/// sent.
enum class Mail : int {
  kEnvelope = 0,  // a call's header, and its data if there is little
  kPartial = 1,   // sums of one host's ranks
  kResult = 2,    // sums of all
  kEarly = 3,     // early data of one byte; the numbers behind it are of 2, 4, 8 ...
};

/// Used by one thread.
class Wire {
 public:
  using BackendPtr = c10::intrusive_ptr<::c10d::Backend>;

  /// A message under way, which is dropped as soon as it is waited for.
  struct Message {
    at::Tensor bytes;
    c10::intrusive_ptr<::c10d::Work> work;
  };

  explicit Wire(BackendPtr gloo) : gloo_(std::move(gloo)) {}

  /// The memory must stay until the message is waited for, or the group has ended. Of no bytes:
  /// nothing is sent. Lets the backend's errors out.
  Message send(int rank, Mail mail, const void* data, size_t bytes);
  Message receive(int rank, Mail mail, void* data, size_t bytes);
  /// `look` is called every few milliseconds, and may raise. Lets the backend's errors out.
  static void wait(Message& message, const std::function<void()>& look);
  static void wait(std::vector<Message>& messages, const std::function<void()>& look);

 private:
  BackendPtr gloo_;
};

}  // namespace fastcomm
