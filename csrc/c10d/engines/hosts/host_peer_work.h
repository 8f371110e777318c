// A send or a receive between two ranks of one host, of a group over several.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "c10d/engines/hosts/host_failures.h"
#include "c10d/works/peer_work.h"

namespace fastcomm {

/// Thread-safe. Goes through shared memory, unless a receive is handed to the backend for the group
/// as a whole (host_peers.h).
class HostPeerWork final : public PeerWork {
 public:
  struct Message {
    Delegate::Subject subject;  // with the peer's number in the group; -1: any
    int rank;                   // this rank's
    int peer;                   // among the ranks of the host
    int tag;
    bool is_send;
  };
  /// Starts the same receive there, for bytes().
  using Issue = std::function<WorkPtr(const HostPeerWork&)>;

  HostPeerWork(std::shared_ptr<HostFailures> failures, std::shared_ptr<Communicator> inside,
               Message message, const at::Tensor& tensor, Milliseconds timeout,
               Continuations::Ptr continuations);
  /// Hands the message to the ranks of the host; false if it has to go the other way. Raises the
  /// group's failure.
  bool start();
  /// The message as bytes, in memory of its own if the tensor has gaps. They keep it.
  std::vector<at::Tensor> bytes() const;
  /// Hands a receive over, unless it has its message, or has ended.
  void go_elsewhere(const Issue& issue);

  const Message& message() const { return message_; }
  Milliseconds timeout() const { return timeout_; }
  /// Looks at nothing, unlike isCompleted().
  bool has_ended() { return is_settled(); }

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  FuturePtr getFuture() override;

 private:
  std::exception_ptr error_of(const std::exception_ptr& error) override;
  int number_of(int source) const override;
  /// The work that has taken the receive over; nullptr: none.
  WorkPtr other();
  /// Ends with that work, which has ended.
  void end_with_other(::c10d::Work& other, const std::exception_ptr& error);
  void follow(const WorkPtr& other);

  const std::shared_ptr<HostFailures> failures_;
  const Message message_;
  std::mutex going_;  // guards what follows
  WorkPtr other_;
  bool followed_ = false;
  std::atomic<bool> claimed_{false};  // by the thread that ends it with the other
};

}  // namespace fastcomm
