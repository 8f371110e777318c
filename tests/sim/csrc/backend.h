// A c10d backend in NCCL's place: for tensors on simulated devices, with NCCL's habits as far as
// tests of what stands beside NCCL or in front of it need them.
//
// - Works complete asynchronously and in order; what is pending when the communicator
//   fails also fails, and so does everything later.
// - A communicator is made at the first operation, and refuses two ranks on one device of one
//   machine.
// - A call that is not asynchronous returns no work; nor does a message in a block, whose end
//   returns it.
// - A rank that dies is waited for, until the group's timeout.
// - What does not fit together between ranks is not noticed.
// - Unlike NCCL it has no stream: it waits for the user's before it begins, and wait() blocks the
//   host.
// The data goes through Gloo; only its plainest operations are used, as others differ between
// versions of torch. Unlike NCCL it sums no numbers that Gloo does not sum, and knows no
// PREMUL_SUM.
#pragma once

#include <map>
#include <mutex>

#include "c10d/life/without_gil.h"
#include "communicators.h"
#include "copies.h"
#include "line.h"

namespace sim {

constexpr const char* kBackendName = "simccl";

using fastcomm::WithoutGil;

class SimBackend final : public ::c10d::Backend {
 public:
  using BackendPtr = c10::intrusive_ptr<::c10d::Backend>;
  using TensorLists = std::vector<Tensors>;
  using OpType = ::c10d::OpType;

  /// `machine` is where this rank's devices are: ranks of several may use the same indices.
  SimBackend(c10::intrusive_ptr<::c10d::Store> store, int rank, int size, Milliseconds timeout,
             BackendPtr gloo, std::string machine)
      : Backend(rank, size),
        gloo_(std::move(gloo)),
        options_(c10::make_intrusive<Options>(kBackendName, timeout)),
        line_(std::make_shared<Line>(rank)),
        communicators_(std::move(store), rank, size, std::move(machine)) {}

  /// Gloo is left behind if it may still be busy: it would be waited for.
  ~SimBackend() override {
    const WithoutGil no_gil;  // Gloo's threads may need it before they end
    abort();
    if (line_->unsettled()) gloo_.release();
    gloo_.reset();
  }

  // For tests.
  /// How often each operation was called, by its name here.
  std::map<std::string, int> calls() {
    const std::lock_guard<std::mutex> lock(issue_mutex_);
    return calls_;
  }
  /// The next operation is never done, nor is any after it.
  void hang_next() { hang_next_ = true; }
  /// The next operation fails, and with it the communicator.
  void fail_next() { fail_next_ = true; }
  /// Asking whether the next operation is done raises an exception, as after a kernel that has
  /// crashed.
  void spoil_next() { spoil_next_ = true; }

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(Milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  ::c10d::ErrorType getError() override { return line_->error(); }
  bool supportsCoalescing() const override { return true; }

  void abort() override {
    line_->fail(
        communication_error(c10::str("NCCL communicator was aborted on rank ", getRank(), ".")),
        ::c10d::ErrorType::COMM_ERROR);
  }
  void shutdown() override {
    line_->drain(options_->timeout);
    abort();
  }
  void eagerConnectSingleDevice(at::Device device) override {
    communicators_.join(device, kAll, options_->timeout, *line_);
  }

  void startCoalescing() override {
    const std::lock_guard<std::mutex> lock(issue_mutex_);
    coalescing_ = true;
    coalesced_calls_ = 0;
    coalesced_.clear();
  }
  WorkPtr endCoalescing() override {
    const std::lock_guard<std::mutex> lock(issue_mutex_);
    coalescing_ = false;
    if (coalesced_calls_ == 0) return nullptr;
    Pending all;
    all.work = new_work(OpType::COALESCED, std::move(coalesced_), ::c10d::kUnsetTimeout);
    all.hangs = line_->hung();
    return line_->add(std::move(all));  // the works before it are done first
  }

  WorkPtr allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override {
    only(tensors);
    return issue("allreduce", OpType::ALLREDUCE, tensors, tensors, opts.timeout, opts.asyncOp,
                 [&](Pending& pending) { reduce_all(pending, tensors[0], opts.reduceOp); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const ::c10d::AllreduceCoalescedOptions& opts) override {
    return issue("allreduce_coalesced", OpType::COALESCED, tensors, tensors, opts.timeout,
                 opts.asyncOp, [&](Pending& pending) {
                   for (const auto& each : tensors) reduce_all(pending, each, opts.reduceOp);
                 });
  }
  WorkPtr reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) override {
    only(tensors);
    const bool root = getRank() == opts.rootRank;
    return issue("reduce", OpType::REDUCE, tensors, tensors, opts.timeout, opts.asyncOp,
                 [&](Pending& pending) {
                   const auto copy = copy_of(tensors[0]);
                   Tensors numbers{numbers_of(copy)};
                   auto inner = opts;
                   inner.reduceOp = summed(pending, numbers[0], opts.reduceOp);
                   pending.inner.push_back(gloo_->reduce(numbers, inner));
                   if (root) give(pending, copy, tensors[0]);
                 });
  }
  WorkPtr broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& opts) override {
    only(tensors);
    return issue("broadcast", OpType::BROADCAST, tensors, tensors, opts.timeout, opts.asyncOp,
                 [&](Pending& pending) {
                   const auto copy = copy_of(tensors[0]);
                   broadcast_copy(pending, copy, static_cast<int>(opts.rootRank));
                   give(pending, copy, tensors[0]);
                 });
  }
  WorkPtr barrier(const ::c10d::BarrierOptions& opts) override {
    c10::Device device = opts.device.value_or(usual_device());
    if (!opts.device && !opts.device_ids.empty()) {
      device = c10::Device(kSim, static_cast<c10::DeviceIndex>(opts.device_ids[0]));
    }
    const c10::DeviceGuard on(device);
    const Tensors tensors{at::zeros({1}, at::TensorOptions(device))};
    return issue("barrier", OpType::BARRIER, tensors, {}, opts.timeout, opts.asyncOp,
                 [&](Pending& pending) { pending.inner.push_back(gloo_->barrier()); });
  }

  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const ::c10d::AllgatherOptions& opts) override {
    only(inputs);
    require_list(outputs);
    return issue("allgather", OpType::ALLGATHER, inputs, outputs[0], opts.timeout, opts.asyncOp,
                 [&](Pending& pending) {
                   for (int root = 0; root < getSize(); ++root) {
                     const auto& output = outputs[0][root];
                     const auto copy = copy_of(root == getRank() ? inputs[0] : output);
                     broadcast_copy(pending, copy, root);
                     give(pending, copy, output);
                   }
                 });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const ::c10d::AllgatherOptions& opts) override {
    return issue("_allgather_base", OpType::_ALLGATHER_BASE, {input}, {output}, opts.timeout,
                 opts.asyncOp, [&](Pending& pending) { gather_into(pending, output, input); });
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& opts) override {
    return issue("allgather_into_tensor_coalesced", OpType::COALESCED, inputs, outputs,
                 opts.timeout, opts.asyncOp, [&](Pending& pending) {
                   for (size_t i = 0; i < inputs.size(); ++i) {
                     gather_into(pending, outputs.at(i), inputs[i]);
                   }
                 });
  }

  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const ::c10d::ReduceScatterOptions& opts) override {
    only(outputs);
    require_list(inputs);
    return issue("reduce_scatter", OpType::REDUCE_SCATTER, inputs[0], outputs, opts.timeout,
                 opts.asyncOp, [&](Pending& pending) {
                   Tensors parts;
                   int64_t before = 0;
                   for (int rank = 0; rank < getSize(); ++rank) {
                     parts.push_back(memory_of(inputs[0][rank]));
                     if (rank < getRank()) before += parts.back().numel();
                   }
                   scatter_sum(pending, outputs[0], at::cat(parts), before, opts.reduceOp);
                 });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const ::c10d::ReduceScatterOptions& opts) override {
    return issue("_reduce_scatter_base", OpType::_REDUCE_SCATTER_BASE, {input}, {output},
                 opts.timeout, opts.asyncOp,
                 [&](Pending& pending) { scatter_parts(pending, output, input, opts.reduceOp); });
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::ReduceScatterOptions& opts) override {
    return issue("reduce_scatter_tensor_coalesced", OpType::COALESCED, inputs, outputs,
                 opts.timeout, opts.asyncOp, [&](Pending& pending) {
                   for (size_t i = 0; i < inputs.size(); ++i) {
                     scatter_parts(pending, outputs.at(i), inputs[i], opts.reduceOp);
                   }
                 });
  }

  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const ::c10d::GatherOptions& opts) override {
    only(inputs);
    const bool root = getRank() == opts.rootRank;
    if (root) require_list(outputs);
    const Tensors written = root ? outputs[0] : Tensors{};
    return issue("gather", OpType::GATHER, inputs, written, opts.timeout, opts.asyncOp,
                 [&](Pending& pending) {
                   Tensors sent(getSize()), received(getSize());
                   sent.at(opts.rootRank) = copy_of(inputs[0]);
                   if (root) received = copies_for(pending, written);
                   exchange(pending, sent, received);
                 });
  }
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const ::c10d::ScatterOptions& opts) override {
    only(outputs);
    const bool root = getRank() == opts.rootRank;
    if (root) require_list(inputs);
    const Tensors read = root ? inputs[0] : Tensors{};
    return issue("scatter", OpType::SCATTER, read, outputs, opts.timeout, opts.asyncOp,
                 [&](Pending& pending) {
                   Tensors sent(getSize()), received(getSize());
                   if (root) sent = copies_of(read);
                   received.at(opts.rootRank) = copies_for(pending, outputs)[0];
                   exchange(pending, sent, received);
                 });
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const ::c10d::AllToAllOptions& opts) override {
    require_list({outputs});
    require_list({inputs});
    return issue("alltoall", OpType::ALLTOALL, inputs, outputs, opts.timeout, opts.asyncOp,
                 [&](Pending& pending) {
                   exchange(pending, copies_of(inputs), copies_for(pending, outputs));
                 });
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const ::c10d::AllToAllOptions& opts) override {
    ::c10d::checkSplitSizes(output_splits, output, getSize());
    ::c10d::checkSplitSizes(input_splits, input, getSize());
    return issue("alltoall_base", OpType::ALLTOALL_BASE, {input}, {output}, opts.timeout,
                 opts.asyncOp, [&](Pending& pending) {
                   const auto received = copies_for(pending, {output})[0];
                   exchange(pending, rows_of(copy_of(input), input, input_splits),
                            rows_of(received, output, output_splits));
                 });
  }

  // NCCL has no tags: messages of a pair arrive in the order in which they were sent.
  WorkPtr send(Tensors& tensors, int peer, int) override {
    only(tensors);
    return issue(
        "send", OpType::SEND, tensors, {}, ::c10d::kUnsetTimeout, /*async=*/true,
        [&](Pending& pending) {
          Tensors bytes{bytes_of(copy_of(tensors[0]))};
          pending.message = true;
          pending.inner.push_back(gloo_->send(bytes, peer, 0));
        },
        peer);
  }
  WorkPtr recv(Tensors& tensors, int peer, int) override {
    only(tensors);
    return issue(
        "recv", OpType::RECV, {}, tensors, ::c10d::kUnsetTimeout, /*async=*/true,
        [&](Pending& pending) {
          Tensors bytes{bytes_of(copies_for(pending, tensors)[0])};
          pending.message = true;
          pending.inner.push_back(gloo_->recv(bytes, peer, 0));
        },
        peer);
  }

 private:
  static constexpr int kAll = Communicators::kAll;

  /// Checks, then queues what `post` makes of a Pending: Gloo's operations over copies. A call that
  /// is not `async` has no work: it is done.
  template <class Post>
  WorkPtr issue(const char* name, OpType type, const Tensors& read, const Tensors& written,
                Milliseconds timeout, bool async, const Post& post, int peer = kAll) {
    const c10::Device device = device_of(read, written);
    line_->require_healthy();
    communicators_.join(device, coalescing_ ? kAll : peer, options_->timeout, *line_);
    {
      const WithoutGil no_gil;
      synchronize(current_stream(device.index()));
    }
    WorkPtr work;
    {
      const std::lock_guard<std::mutex> lock(issue_mutex_);
      ++calls_[name];
      last_device_ = device;
      Pending pending;
      pending.work = new_work(type, written, timeout);
      if (fail_next_.exchange(false)) {
        line_->fail(nccl_error("unhandled cuda error", "ncclUnhandledCudaError",
                               "Call to CUDA function failed.", "as the test asked for"),
                    ::c10d::ErrorType::COMM_ERROR);
      } else if (hang_next_.exchange(false) || line_->hung()) {
        line_->hang();
        pending.hangs = true;
      } else {
        post(pending);
      }
      if (coalescing_) {
        ++coalesced_calls_;
        coalesced_.insert(coalesced_.end(), written.begin(), written.end());
      }
      if (spoil_next_.exchange(false)) pending.work->spoil();
      work = line_->add(std::move(pending));
    }
    const bool message = type == OpType::SEND || type == OpType::RECV;
    if (coalescing_ && message) return nullptr;
    if (async) return work;
    if (!coalescing_) work->wait();
    return nullptr;
  }

  c10::intrusive_ptr<SimWork> new_work(OpType type, Tensors outputs, Milliseconds timeout) {
    return c10::make_intrusive<SimWork>(
        getRank(), type, ++sequence_, std::move(outputs), device_or_current(),
        timeout == ::c10d::kUnsetTimeout ? options_->timeout : timeout);
  }

  c10::Device usual_device() {
    const std::lock_guard<std::mutex> lock(issue_mutex_);
    return device_or_current();
  }
  c10::Device device_or_current() const {
    return last_device_.value_or(bound_device_id_.value_or(Guard().getDevice()));
  }

  static void only(const Tensors& tensors) {
    TORCH_CHECK_VALUE(tensors.size() == 1, "Expecting one tensor only but got ", tensors.size());
  }
  void require_list(const TensorLists& lists) const {
    TORCH_CHECK_VALUE(lists.size() == 1 && lists[0].size() == static_cast<size_t>(getSize()),
                      "Expected one list of tensors, one for each rank");
  }

  /// Each rank's part of a tensor whose rows are divided thus; evenly if nothing is said.
  Tensors rows_of(const at::Tensor& copy, const at::Tensor& tensor,
                  std::vector<int64_t> splits) const {
    if (splits.empty()) splits.assign(getSize(), tensor.size(0) / getSize());
    const int64_t row = tensor.size(0) == 0 ? 0 : tensor.numel() / tensor.size(0);
    for (auto& split : splits) split *= row;
    return copy.split_with_sizes(splits);
  }

  // What operations are made of.
  /// The reduction to ask Gloo for, which has no average.
  ::c10d::ReduceOp summed(Pending& pending, const at::Tensor& numbers,
                          const ::c10d::ReduceOp& op) const {
    if (op != ::c10d::ReduceOp::AVG) return op;
    pending.finish.push_back([numbers, size = getSize()] {
      if (numbers.is_floating_point()) {
        numbers.div_(size);
      } else {
        numbers.div_(size, "trunc");
      }
    });
    return ::c10d::ReduceOp::SUM;
  }
  void sum_copy(Pending& pending, const at::Tensor& copy, const ::c10d::ReduceOp& op) {
    Tensors numbers{numbers_of(copy)};
    ::c10d::AllreduceOptions opts;
    opts.reduceOp = summed(pending, numbers[0], op);
    pending.inner.push_back(gloo_->allreduce(numbers, opts));
  }
  void reduce_all(Pending& pending, const at::Tensor& tensor, const ::c10d::ReduceOp& op) {
    const auto copy = copy_of(tensor);
    sum_copy(pending, copy, op);
    give(pending, copy, tensor);
  }
  /// The part of the sum that begins after `before` elements.
  void scatter_sum(Pending& pending, const at::Tensor& output, const at::Tensor& copy,
                   int64_t before, const ::c10d::ReduceOp& op) {
    sum_copy(pending, copy, op);
    give(pending, copy.narrow(0, before, output.numel()), output);
  }
  void scatter_parts(Pending& pending, const at::Tensor& output, const at::Tensor& input,
                     const ::c10d::ReduceOp& op) {
    require_parts(input, output,
                  "input tensor must be the same size as output size times world size");
    scatter_sum(pending, output, copy_of(input), getRank() * output.numel(), op);
  }
  void broadcast_copy(Pending& pending, const at::Tensor& copy, int root) {
    if (copy.numel() == 0) return;
    Tensors bytes{bytes_of(copy)};
    ::c10d::BroadcastOptions opts;
    opts.rootRank = root;
    pending.inner.push_back(gloo_->broadcast(bytes, opts));
  }
  void gather_into(Pending& pending, const at::Tensor& output, const at::Tensor& input) {
    require_parts(output, input,
                  "output tensor size must be equal to world_size times input tensor size");
    const auto copy = copies_for(pending, {output})[0];
    for (int root = 0; root < getSize(); ++root) {
      const auto part = copy.narrow(0, root * input.numel(), input.numel());
      if (root == getRank()) part.copy_(memory_of(input));
      broadcast_copy(pending, part, root);
    }
  }
  void require_parts(const at::Tensor& whole, const at::Tensor& part, const char* what) const {
    TORCH_CHECK_VALUE(whole.numel() == part.numel() * getSize(), what);
    TORCH_CHECK_TYPE(whole.scalar_type() == part.scalar_type(),
                     "output tensor must have the same type as input tensor");
  }
  /// Undefined tensors are skipped.
  void exchange(Pending& pending, const Tensors& sent, const Tensors& received) {
    const auto bytes = [](const Tensors& tensors, std::vector<int64_t>& splits) {
      Tensors parts;
      for (const auto& tensor : tensors) {
        parts.push_back(tensor.defined() ? bytes_of(tensor) : at::empty({0}, at::kByte));
        splits.push_back(parts.back().numel());
      }
      return parts;
    };
    std::vector<int64_t> sent_splits, received_splits;
    auto input = at::cat(bytes(sent, sent_splits));
    const auto parts = bytes(received, received_splits);
    auto output = at::empty_like(at::cat(parts));
    pending.finish.push_back([output, parts, received_splits] {
      const auto came = output.split_with_sizes(received_splits);
      for (size_t i = 0; i < parts.size(); ++i) parts[i].copy_(came[i]);
    });
    // Gloo keeps the vectors that it is given.
    pending.inner.push_back(gloo_->alltoall_base(output, input, received_splits, sent_splits));
  }

  BackendPtr gloo_;
  const c10::intrusive_ptr<Options> options_;
  const std::shared_ptr<Line> line_;
  Communicators communicators_;

  std::mutex issue_mutex_;  // operations reach Gloo in the order of the line
  std::map<std::string, int> calls_;
  std::atomic<uint64_t> sequence_{0};
  std::optional<c10::Device> last_device_;
  std::atomic<bool> coalescing_{false};
  int coalesced_calls_ = 0;
  Tensors coalesced_;
  std::atomic<bool> hang_next_{false};
  std::atomic<bool> fail_next_{false};
  std::atomic<bool> spoil_next_{false};
};

}  // namespace sim
