#include "c10d/engines/cuda/trial.h"
#if defined(FC_DEVICES)
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>

#include "c10d/life/exception.h"
#include "c10d/requests/calls.h"
#include "core/device_guard.h"
#include "engines/cuda/failure_text.h"

namespace fastcomm {
namespace {

constexpr int kTurns = 4;
constexpr int64_t kElements = 64 << 10;
constexpr uint64_t kMostNanoseconds = 20'000'000'000;

Call sum_of(int64_t count) {
  Call call;
  call.kind = OpKind::kAllReduce;
  call.dtype = DType::kInt32;
  call.op = ReduceOp::kSum;
  call.count = count;
  return call;
}

at::Tensor numbers(int64_t count, int rank, int turn) {
  return at::arange(count, at::kInt).mul_(1009 + 13 * rank).add_(turn);
}

}  // namespace

Trial::Trial(PeerCollectives& collectives, Communicator& beside, const c10::Stream& stream,
             uint32_t* abort_word, char* memory)
    : collectives_(collectives),
      beside_(beside),
      stream_(stream),
      abort_word_(abort_word),
      elements_(kElements) {
  // Operations of one launch are staged.
  while (memory != nullptr && collectives_.is_one_launch(sum_of(elements_))) elements_ *= 2;
  FC_CHECK(kTurns * elements_ * sizeof(int) <= kMostBytes, "sums of ", elements_, " elements");
  const c10::StreamGuard in_its_order(stream_);
  for (int turn = 0; turn < kTurns; ++turn) {
    const at::Tensor own = numbers(elements_, beside_.rank(), turn);
    if (memory == nullptr) {
      sums_.push_back(own.to(stream_.device()));
      continue;
    }
    const auto options = own.options().device(stream_.device());
    char* const there = memory + turn * own.nbytes();
    const at::Tensor placed = at::for_blob(there, own.sizes())
                                  .options(options)
                                  .target_device(stream_.device())
                                  .make_tensor();
    sums_.push_back(placed.copy_(own));
  }
}

void Trial::wait() {
  c10::Event end(kAccelerator);
  end.record(stream_);
  std::optional<Deadline> since;
  while (!end.query()) {
    if (beside_.stalled("forming", since) != nullptr) store_relaxed(abort_word_, 1U);
    std::this_thread::sleep_for(Milliseconds(1));
  }
}

void Trial::run(int channel, uint64_t limit_ns) {
  const DeviceGuard guard(stream_.device_index());
  const c10::StreamGuard in_its_order(stream_);
  const int rank = beside_.rank(), size = beside_.size();
  const ::c10d::ReduceOp sum_of_ranks = ::c10d::ReduceOp::SUM;
  const std::exception_ptr problem = caught([&] {
    for (const at::Tensor& sum : sums_) {
      Request request;
      request.kind = OpKind::kAllReduce;
      request.outputs = sum;
      request.op = &sum_of_ranks;
      const Calls calls = calls_of({rank, size, Home::kTensor}, request);
      collectives_.enqueue(calls[0].call, channel, native_stream(stream_),
                           std::min(limit_ns, kMostNanoseconds));
    }
  });
  wait();
  if (problem != nullptr) std::rethrow_exception(problem);
  const MeetingRecord& record = collectives_.record(channel);
  if (load_flag(&record.wait.failure) != 0) {
    throw Error(ErrorCode::kSystem,
                "a trial has failed: " + describe_failure(record, rank, size).text);
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    at::Tensor expected = numbers(elements_, 0, turn);
    for (int peer = 1; peer < size; ++peer) expected.add_(numbers(elements_, peer, turn));
    const int64_t wrong = sums_[turn].cpu().ne(expected).sum().item<int64_t>();
    if (wrong == 0) continue;
    throw Error(ErrorCode::kSystem,
                concat("a trial has given wrong numbers, ", wrong, " of ", elements_,
                       ": the devices do not see what is in each other's memory"));
  }
}

}  // namespace fastcomm
#endif
