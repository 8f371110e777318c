// Several operations as one, for what was issued between startCoalescing and endCoalescing.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "c10d/continuations.h"

namespace fastcomm {

/// Thread-safe. Done when all are; ends in the first one's error.
class WorkOfMany final : public ::c10d::Work {
 public:
  using WorkPtr = c10::intrusive_ptr<::c10d::Work>;

  WorkOfMany(int rank, std::vector<WorkPtr> works, std::shared_ptr<Continuations> continuations)
      : ::c10d::Work(rank, ::c10d::OpType::COALESCED),
        works_(std::move(works)),
        continuations_(std::move(continuations)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// The group's, for what users attach to the future.
  const std::shared_ptr<Continuations>& continuations() const { return continuations_; }

 private:
  std::vector<WorkPtr> works_;
  std::shared_ptr<Continuations> continuations_;
};

}  // namespace fastcomm
