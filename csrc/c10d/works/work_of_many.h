// Several operations as one, for calls issued between startCoalescing and endCoalescing.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "c10d/works/group_work.h"

namespace fastcomm {

/// Thread-safe. Done when all are; ends in the first one's error.
class WorkOfMany final : public GroupWork {
 public:
  WorkOfMany(int rank, std::vector<WorkPtr> works, Continuations::Ptr continuations)
      : GroupWork(rank, ::c10d::OpType::COALESCED, std::move(continuations)),
        works_(std::move(works)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  Tensors result() override;
  FuturePtr getFuture() override;

 private:
  FuturePtr future_of_all() const;
  /// The future, if it was asked for.
  FuturePtr asked_for();

  const std::vector<WorkPtr> works_;
  std::mutex future_mutex_;
  FuturePtr future_;  // nullptr until it is asked for
};

}  // namespace fastcomm
