#include "c10d/engines/delegate/delegate_engine.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "c10d/life/exception.h"
#include "core/call_site.h"
#include "transport/fork.h"

namespace fastcomm {

using ::c10d::OpType;

namespace {

/// A kind whose end() calls `last` at its end, if operations of it block.
DelegateKind and_then(DelegateKind kind, std::function<void()> last) {
  if (!kind.blocks) return kind;
  kind.end = [end = std::move(kind.end), last = std::move(last)](::c10d::Backend& inner) {
    end(inner);
    last();
  };
  return kind;
}

}  // namespace

DelegateEngine::DelegateEngine(BackendPtr inner, DelegateKind kind, GroupContext context,
                               std::string label, Beside beside, std::shared_ptr<PeerLinks> links)
    : Engine(std::move(context)),
      links_(std::move(links)),
      delegate_(std::make_shared<Delegate>(*inner,
                                           and_then(std::move(kind), [this] { late_->wake(); }),
                                           std::move(beside), std::move(label), links_)),
      inner_(std::move(inner)),
      coalesces_(inner_->supportsCoalescing()),
      late_(std::make_unique<Watch>(
          "fc-late-ends", [this] { return delegate_->end_late_ones(/*at_once=*/false); })) {
  static const bool watched = [] { return watch_for_forks(), true; }();
  static_cast<void>(watched);
  if (!delegate_->kind().blocks) watch_ = std::make_unique<DeviceWatch>(delegate_);
  if (links_ == nullptr) return;
  // Weak: works outlive this engine, and hold the delegate, which holds the links.
  links_->start({[delegate = std::weak_ptr<Delegate>(delegate_)](const Notice& notice) {
                   if (const auto held = delegate.lock()) held->hear(notice);
                 },
                 [delegate = std::weak_ptr<Delegate>(delegate_)](int peer, const std::string& how,
                                                                 uint64_t issued) {
                   if (const auto held = delegate.lock()) held->departed(peer, how, issued);
                 },
                 // Until stop(). A number alone, which orders nothing.
                 [this] { return sequence_.load(std::memory_order_relaxed); }});
}

DelegateEngine::~DelegateEngine() {
  if (forked_from_endpoint()) return;  // abandoned; a thread of the parent may have held the locks
  watch_.reset();
  if (links_ != nullptr) links_->stop();
  delegate_->forget();
  if (late_ != nullptr) late_->stop();
  delegate_->end_late_ones(/*at_once=*/true);
}

void DelegateEngine::abandon() {
  // Their threads are not here, and works may hold the delegate, which holds the links.
  static_cast<void>(new auto(std::move(links_)));
  static_cast<void>(late_.release());
  static_cast<void>(watch_.release());
  static_cast<void>(inner_.release());
}

Selection DelegateEngine::explain(const Query& query) const {
  if (row_of(query.kind).algorithms.empty()) {
    return {Algorithm::kDelegated, "there is no such operation"};
  }
  return {Algorithm::kDelegated, concat("a backend of torch's serves the group: ", name())};
}

WorkPtr DelegateEngine::submit(const Request& request) {
  return submit(request, [&](const Delegate::Subject&) { return request.forward(*inner_); });
}

WorkPtr DelegateEngine::submit(const Request& request, Maker make) {
  // Gloo reports no death to a caller that waits for any rank: if only one can be meant, it is that
  // one.
  const bool from_any = request.kind == OpKind::kRecv && request.peer == Request::kNoRank;
  const int peer = from_any && size() == 2 ? 1 - rank() : request.peer;
  DelegateWork::Call call = this->call(request.name(), peer, request.type, request.value());
  if (const auto failure = delegate_->failed_before(request.name())) {
    if (request.is_message()) std::rethrow_exception(failure);
    return DelegateWork::failed(std::move(call), failure);
  }
  // In a block that the backend coalesces itself, the work that ends it is watched.
  const bool watched = watch_ != nullptr && !(coalesces() && request.coalesced);
  const Delegate::Subject subject = call.subject;
  WorkPtr work = started(std::move(call), timeout_or_default(request.timeout), watched,
                         [&] { return make(subject); });
  // Not if the arguments were wrong: other ranks compare this number with theirs.
  if (!request.is_message()) ++sequence_;
  return work;
}

DelegateWork::Call DelegateEngine::call(const char* name, int peer, OpType type,
                                        Tensors outputs) const {
  const Delegate::Subject subject{name, peer, sequence_, call_site()};
  check_not_forked([&] { return delegate_->front(subject); });
  return {delegate_, subject, type, std::move(outputs), this->timeout(), continuations()};
}

template <class Start>
WorkPtr DelegateEngine::started(DelegateWork::Call call, Milliseconds timeout, bool watched,
                                const Start& start) {
  const auto entry = watched ? watch_->begin(call.subject, timeout) : nullptr;
  try {
    WorkPtr inner = start();
    if (inner == nullptr) {  // a message in a block: the end of the block has the work
      if (watched) watch_->drop(entry);
      return nullptr;
    }
    auto work = DelegateWork::start(call, std::move(inner));
    if (watched) watch_->follow(entry, work);
    return work;
  } catch (...) {
    if (watched) watch_->drop(entry);
    std::rethrow_exception(delegate_->failed(call.subject, std::current_exception()));
  }
}

void DelegateEngine::gather_bytes(const void* mine, void* all, size_t bytes) {
  constexpr const char* kName = "forming";
  const auto length = static_cast<int64_t>(bytes);
  Tensors input{at::empty({length}, at::kByte)};
  at::Tensor output = at::empty({length * size()}, at::kByte);
  std::memcpy(input[0].data_ptr(), mine, bytes);
  DelegateWork::Call call = this->call(kName, Request::kNoRank, OpType::_ALLGATHER_BASE, {});
  if (const auto failure = delegate_->failed_before(kName)) std::rethrow_exception(failure);
  ++sequence_;
  started(std::move(call), timeout(), /*watched=*/false, [&] {
    return inner_->_allgather_base(output, input[0]);
  })->wait();
  std::memcpy(all, output.data_ptr(), bytes * static_cast<size_t>(size()));
}

void DelegateEngine::monitored_barrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) {
  constexpr const char* kName = "monitored_barrier";
  DelegateWork::Call call = this->call(kName, Request::kNoRank, OpType::BARRIER, {});
  if (const auto failure = delegate_->failed_before(kName)) std::rethrow_exception(failure);
  ++sequence_;
  const auto work = DelegateWork::aside(std::move(call), [inner = inner_, opts, wait_all_ranks] {
    inner->monitoredBarrier(opts, wait_all_ranks);
  });
  try {
    work->wait();
  } catch (const std::exception&) {  // of rank 0, as the links tell, it has less than the backend's
    const auto failure = rank() == 0 ? nullptr : delegate_->failure();
    const std::string text = failure == nullptr ? "" : what_of(failure);
    const std::string came = came_to_monitored_barrier(rank());
    const bool is_told = !text.empty() && code_of(failure) == ErrorCode::kTimeout;
    if (!is_told || text.find(came) != std::string::npos) throw;
    throw Error(ErrorCode::kTimeout, text + ". " + came);
  }
}

bool DelegateEngine::begin_block() {
  if (coalesces()) inner_->startCoalescing();
  return coalesces();
}

WorkPtr DelegateEngine::end_block() {
  return started(call("coalesced", Request::kNoRank, OpType::COALESCED, {}), timeout(), true,
                 [&] { return inner_->endCoalescing(); });
}

void DelegateEngine::fail(const std::exception_ptr& why) {
  delegate_->give_up(code_of(why), what_of(why));
}

void DelegateEngine::abort() {
  delegate_->give_up({"none", Request::kNoRank, sequence_}, ErrorCode::kPoisoned,
                     concat("rank ", rank(), " called abort()"));
}

void DelegateEngine::leave(const std::string& how) {
  // NCCL's shutdown() waits for running work, holding a lock that its abort() needs: if a peer died
  // meanwhile, both would wait for ever.
  if (watch_ != nullptr) watch_->drain();
  if (delegate_->failure() == nullptr) inner_->shutdown();  // else it has been ended
  if (links_ != nullptr) links_->leave(how.empty() ? "destroyed its process group" : how);
  delegate_->leave({"none", Request::kNoRank, sequence_});
}

}  // namespace fastcomm
