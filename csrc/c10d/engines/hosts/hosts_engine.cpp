#include "c10d/engines/hosts/hosts_engine.h"

#include <thread>

#include "c10d/engines/hosts/host_lists.h"
#include "c10d/engines/hosts/host_messages.h"
#include "c10d/engines/hosts/host_moves.h"
#include "c10d/engines/hosts/host_sum.h"
#include "c10d/life/aside.h"
#include "c10d/life/exception.h"
#include "c10d/requests/calls.h"
#include "core/call_site.h"
#include "tensors/dtype.h"
#include "tensors/gradients.h"
#include "transport/fork.h"

namespace fastcomm {

namespace {

/// What the bits of one host cost in this placement, if that is much.
std::string price_of(const HostLayout& layout) {
  if (layout.aligned()) {
    return layout.ranks_per_host() > 1 ? ""
                                       : "; where links are fast, FASTCOMM_ROUTE=fastest has Gloo "
                                         "take less time, with other bits";
  }
  return concat("; a sum sends ", layout.trees[layout.own].size(),
                " partials from this host, one for each of its subtrees of ranks: with a power of "
                "two of ranks on each host, numbered host by host, it would be one "
                "(FASTCOMM_ROUTE=fastest has Gloo do all, with other bits)");
}

constexpr const char* kEnded = "this process group was destroyed; create a new one";

void carry_out(HostCall& call, HostInside& inside, HostExchange& between) {
  switch (row_of(call.call.kind).hosts) {
    case HostWay::kSum:
      return sum_to_all(call, inside, between);
    case HostWay::kSumToRoot:
      return sum_to_root(call, inside, between);
    case HostWay::kSumParts:
      return sum_parts(call, inside, between);
    case HostWay::kSumLists:
      return sum_lists(call, inside, between);
    case HostWay::kGather:
      return gather_to_all(call, inside, between);
    case HostWay::kGatherUneven:
      return gather_uneven(call, inside, between);
    case HostWay::kGatherShards:
      return gather_shards(call, inside, between);
    case HostWay::kSpread:
      return spread(call, inside, between);
    case HostWay::kExchange:
      return exchange_messages(call, inside, between);
    case HostWay::kMeet:
      return meet(call, inside, between);
    case HostWay::kMessage:
    case HostWay::kNone:
      break;
  }
  throw Error(ErrorCode::kUnsupported,
              concat(op_kind_name(call.call.kind), ": not composed of what hosts do"));
}

}  // namespace

/// A request that was issued: one call, or one for each tensor of a list.
struct HostsEngine::Issued {
  Calls calls;
  Delegate::Subject subject;
  uint64_t number = 0;  // of those that this engine has
  Milliseconds timeout;
  Deadline deadline;
  GroupWork::FuturePtr future = make_future();
  Tensors value;
};

/// Stands for it in the work that c10d gets.
class HostsEngine::IssuedWork final : public ::c10d::Work {
 public:
  IssuedWork(int rank, ::c10d::OpType type, GroupWork::FuturePtr future, Tensors value)
      : ::c10d::Work(rank, type), future_(std::move(future)), value_(std::move(value)) {}
  GroupWork::FuturePtr getFuture() override { return future_; }
  Tensors result() override { return value_; }

 private:
  const GroupWork::FuturePtr future_;
  const Tensors value_;
};

HostsEngine::HostsEngine(std::shared_ptr<Communicator> inside, HostLayout layout,
                         const HostThresholds& thresholds, DelegateEngine& whole,
                         GroupContext context)
    : Engine(std::move(context)),
      whole_(whole),
      delegate_(whole.delegate()),
      inside_(std::move(inside)),
      failures_(std::make_shared<HostFailures>(delegate_, inside_)),
      peers_(inside_, layout, failures_, whole),
      between_(
          std::make_unique<HostExchange>(std::move(layout), thresholds, size(), whole.inner())),
      watch_(std::make_unique<Watch>("fc-hosts", [this] { return run_all(); })) {
  inside_->set_label(delegate_->label());
  // Messages among the ranks of this host end with the group.
  delegate_->also_end(this, [failures = failures_](const std::exception_ptr& failure) {
    if (!failures->is_leaving()) failures->tell_inside("none", failure);
  });
}

HostsEngine::~HostsEngine() {
  if (forked_from_endpoint()) return;  // abandoned
  delegate_->also_end(this, nullptr);
  leave("");
  watch_->stop();
  run_all();                       // ends each
  if (failed_ == nullptr) return;  // no message is under way that anybody waited for
  auto aside = std::make_unique<std::pair<std::shared_ptr<Issued>, std::unique_ptr<HostExchange>>>(
      std::move(failed_), std::move(between_));  // the second one ends first
  let_go_aside(std::move(aside));
}

void HostsEngine::abandon() {
  static_cast<void>(watch_.release());
  static_cast<void>(between_.release());
  static_cast<void>(new auto(std::move(failed_)));
  static_cast<void>(new auto(std::move(inside_)));
}

bool HostsEngine::takes(const Query& query) const {
  const OperationRow& row = row_of(query.kind);
  if (row.hosts == HostWay::kMessage) return between_->layout().ranks_per_host() > 1;
  return row.hosts != HostWay::kNone &&
         (!row.reduces || why_no_reduction(query.dtype, query.op) == nullptr);
}

bool HostsEngine::takes(const Request& request) const {
  const OperationRow& row = row_of(request.kind);
  // Whatever the tensor, and wherever it is called: the peer must choose the same.
  if (row.hosts == HostWay::kMessage) return peers_.takes(request);
  if (row.hosts == HostWay::kNone) return false;
  for (const at::TensorList tensors : {request.inputs, request.outputs}) {
    for (const at::Tensor& each : tensors) {
      const bool sparse =
          each.layout() == at::kSparse &&
          (request.kind == OpKind::kAllReduce || request.kind == OpKind::kAllReduceSparse);
      if (each.layout() != at::kStrided && !sparse) return false;
      const auto why_not = [&] {
        return why_no_reduction_of(each.scalar_type(), reduce_op_of(*request.op));
      };
      if (row.reduces && why_not() != nullptr) return false;
    }
  }
  return true;
}

Selection HostsEngine::explain(const Query& query) const {
  const HostLayout& layout = between_->layout();
  if (row_of(query.kind).hosts == HostWay::kMessage) {
    return {Algorithm::kComposed,
            concat("shared memory between ranks of one host, ", whole_.name(), " between hosts")};
  }
  return {Algorithm::kComposed,
          concat(layout.num_hosts(), " hosts of ", layout.ranks_per_host(),
                 " ranks: shared memory inside each, ", whole_.name(), " between them",
                 row_of(query.kind).reduces ? "; the bits are those of one host" : "", "; ",
                 between_->thresholds().described(), price_of(layout))};
}

WorkPtr HostsEngine::submit(const Request& request) {
  if (request.is_message()) {
    return peers_.submit(request, timeout_or_default(request.timeout), continuations());
  }
  std::shared_ptr<Issued> issued;
  WorkPtr work = whole_.submit(request, [&](const Delegate::Subject& subject) -> WorkPtr {
    if (is_ending()) throw Error(ErrorCode::kPoisoned, delegate_->front(subject) + kEnded);
    auto calls = calls_of({rank(), size()}, request);
    try {
      watch_->wake();               // before anything is queued, lest there be no thread
    } catch (const Error& error) {  // the others would wait for this rank
      std::rethrow_exception(delegate_->give_up(subject, error.code(), error.what()));
    }
    for (Prepared& each : calls) each.call.site = subject.site;
    issued = std::make_shared<Issued>();
    issued->calls = std::move(calls);
    issued->subject = subject;
    issued->timeout = timeout_or_default(request.timeout);
    issued->deadline = deadline_after(issued->timeout);
    issued->value = request.value();
    return c10::make_intrusive<IssuedWork>(rank(), request.type, issued->future, issued->value);
  });
  if (issued == nullptr) {  // it has failed, which its work says
    if (request.results != nullptr && request.results->empty()) {
      *request.results = make_gradient_results(request.outputs.vec());
    }
    return work;
  }
  // After the delegate knows of it, which a failure is then about.
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    issued->number = issued_++;
    queue_.push_back(std::move(issued));
  }
  watch_->wake();
  return work;
}

bool HostsEngine::run_all() {
  for (;;) {
    std::shared_ptr<Issued> issued;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (queue_.empty()) return false;
      issued = std::move(queue_.front());
      queue_.pop_front();
      running_ = issued.get();
    }
    run(issued);
  }
}

void HostsEngine::run(const std::shared_ptr<Issued>& held) {
  Issued& issued = *held;
  std::exception_ptr error;
  try {
    look(issued);
    HostInside inside(inside_);
    for (Prepared& each : issued.calls) {
      HostCall call{each.call, issued.number, issued.subject.sequence, [&] { look(issued); }};
      if (row_of(each.call.kind).hosts == HostWay::kMeet) finish_earlier(issued);
      carry_out(call, inside, *between_);
      each.held.write_back();
    }
  } catch (...) {
    error = failed(issued, std::current_exception());
    if (failed_ == nullptr) failed_ = held;
    const auto failure = delegate_->failure();
    if (failure != nullptr && !is_ending())
      failures_->tell_inside(issued.subject.operation, failure);
  }
  {
    // First: who has waited for the call may destroy the group, and leaves nothing behind.
    const std::lock_guard<std::mutex> lock(mutex_);
    ++ended_;
    running_ = nullptr;
  }
  settle_future(*issued.future, as_torch_error(error), issued.value);
}

void HostsEngine::finish_earlier(const Issued& issued) {
  while (delegate_->is_behind(issued.subject.sequence)) {
    look(issued);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void HostsEngine::look(const Issued& issued) {
  const Delegate::Subject& subject = issued.subject;
  if (Clock::now() > issued.deadline) delegate_->overdue(subject, issued.timeout);
  if (const auto failure = delegate_->failure()) {
    failures_->tell_inside(issued.subject.operation, failure);
    std::rethrow_exception(failure);
  }
  if (!is_ending()) return;
  if (is_leaving()) inside_->leave(how_);  // lest the wait that this ends give the group up
  throw Error(ErrorCode::kPoisoned, delegate_->front(subject) + kEnded);
}

std::exception_ptr HostsEngine::failed(const Issued& issued, const std::exception_ptr& error) {
  if (const auto first = delegate_->failure()) return first;
  return is_ending() ? error : failures_->of(issued.subject, error);
}

void HostsEngine::leave(const std::string& how) {
  uint64_t under_way = 0, first = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_leaving()) return;
    how_ = how;
    under_way = issued_ - ended_;
    if (under_way != 0) {
      first = (running_ != nullptr ? running_ : queue_.front().get())->subject.sequence;
    }
    failures_->leave();  // a release: whoever sees it, and not the lock, sees how_
  }
  // Ranks of other hosts need what this rank does not do any more.
  if (under_way != 0) delegate_->leave_behind(under_way, first);
  inside_->leave(how);
}

}  // namespace fastcomm
