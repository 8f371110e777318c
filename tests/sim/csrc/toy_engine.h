// An engine that is none of fastcomm's, as somebody else might write one: it sums some floats
// through the store of a group, and takes nothing else.
#pragma once

#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "c10d/engines/engine.h"
#include "c10d/works/group_work.h"

namespace toy {

using fastcomm::concat;
using fastcomm::Request;
using fastcomm::WorkPtr;

constexpr uint64_t kMostBytes = 256;

inline std::atomic<int> submitted{0}, left{0};  // in this process

/// What is done when it is made.
class Done final : public fastcomm::GroupWork {
 public:
  Done(int rank, const Request& request, fastcomm::Continuations::Ptr continuations)
      : GroupWork(rank, request.type, std::move(continuations)), value_(request.value()) {
    finish();
    future_->markCompleted(c10::IValue(value_));
  }
  FuturePtr getFuture() override { return future_; }
  Tensors result() override { return value_; }

 private:
  const Tensors value_;
  const FuturePtr future_ = fastcomm::make_future();
};

class Engine final : public fastcomm::Engine {
 public:
  Engine(fastcomm::GroupContext context, c10::intrusive_ptr<::c10d::Store> store)
      : fastcomm::Engine(std::move(context)), store_(std::move(store)) {}

  std::string name() const override { return "toy"; }
  bool takes(const Request& request) const override {
    if (request.kind != fastcomm::OpKind::kAllReduce || request.outputs.size() != 1) return false;
    const at::Tensor& tensor = request.outputs[0];
    return *request.op == ::c10d::ReduceOp::SUM && tensor.is_cpu() &&
           tensor.layout() == at::kStrided && tensor.scalar_type() == at::kFloat &&
           tensor.nbytes() <= kMostBytes;
  }
  bool takes(const fastcomm::Query& query) const override {
    return query.kind == fastcomm::OpKind::kAllReduce && query.op == fastcomm::ReduceOp::kSum &&
           query.dtype == fastcomm::DType::kFloat32 && query.bytes <= kMostBytes;
  }
  fastcomm::Selection explain(const fastcomm::Query&) const override {
    return {fastcomm::Algorithm::kDelegated, "a few floats are summed in the store"};
  }
  WorkPtr submit(const Request& request) override {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    const uint64_t number = calls_++;
    ++toy::submitted;
    const at::Tensor& tensor = request.outputs[0];
    const at::Tensor own = tensor.contiguous();
    std::vector<uint8_t> bytes(own.nbytes());
    std::memcpy(bytes.data(), own.const_data_ptr(), bytes.size());
    store_->set(concat(number, "/", rank()), bytes);
    at::Tensor sum = at::zeros_like(own), term = at::empty_like(own);
    for (int peer = 0; peer < size(); ++peer) {
      bytes = store_->get(concat(number, "/", peer));
      std::memcpy(term.mutable_data_ptr(), bytes.data(), bytes.size());
      sum.add_(term);
    }
    tensor.copy_(sum);
    if (!request.async) return nullptr;
    return c10::make_intrusive<Done>(rank(), request, continuations());
  }
  uint64_t submitted() const override { return calls_; }

  std::exception_ptr failure() const override { return failure_; }
  void fail(const std::exception_ptr& why) override { failure_ = why; }
  void abort() override {}
  void leave(const std::string&) override { ++toy::left; }

 private:
  const c10::intrusive_ptr<::c10d::Store> store_;
  std::exception_ptr failure_;
  uint64_t calls_ = 0;
};

inline fastcomm::EngineMaker maker() {
  return [](const fastcomm::GroupContext& context, c10::intrusive_ptr<::c10d::Store> store) {
    return std::make_unique<Engine>(context, std::move(store));
  };
}

}  // namespace toy
