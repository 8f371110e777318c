#include "engines/cpu/operation.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "coll/unlike.h"
#include "core/caches.h"
#include "core/env.h"
#include "core/error.h"

namespace fastcomm {
namespace {

Algorithm algorithm_of(const Call& call, const GroupTraits& group) {
  return select_algorithm(group, {call.kind, call.dtype, call.op, call.bytes()});
}

AnySchedule schedule_of(const Call& call, const PeerView& peers, const GroupTraits& group,
                        Algorithm algorithm, const AlgorithmRow* row, uint64_t sequence) {
  if (algorithm == Algorithm::kNothing) return Nothing{};
  if (row == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                concat(op_kind_name(call.kind), "(", reduce_op_name(call.op), ", ",
                       dtype_name(call.dtype), "): no kernel does this"));
  }
  return row->schedule(call, peers, group.layout, sequence);
}

}  // namespace

Operation::Operation(const Call& call, Transport& peers, const GroupTraits& group,
                     uint64_t sequence, Milliseconds timeout, std::string site)
    : peers_(peers),
      header_(make_header(call, sequence, static_cast<uint8_t>(algorithm_of(call, group)))),
      detail_(call.detail),
      record_(call.record),
      site_(std::move(site)),
      row_(row_of(call.kind, algorithm())),
      layout_(group.layout),
      schedule_(schedule_of(call, peers.view(), group, algorithm(), row_, sequence)),
      executor_(peers.view(), peers.doorbells(), reduction_of(call),
                call.op == ReduceOp::kAvg ? peers.size() : 1, call.factor),
      timeout_(timeout) {
  record_.number(sequence, header_.algorithm);
  const auto alone = row_of(call.kind).alone;
  if (algorithm() == Algorithm::kNothing && alone != nullptr) alone(call);
  const bool copies = row_ != nullptr && row_->copied_out != nullptr;
  if (copies && row_->copied_out(call, peers.size()) >= level3_cache()) {
    executor_.copies_past_caches();
  }
  locate(call);
  const uint64_t payload = payload_bytes();
  peers.reserve_scratch(payload == kInBlocks ? group.layout.total()
                                             : group.layout.in_one_step(payload));
}

bool Operation::is_like(const Call& call) const {
  return header_.kind == static_cast<uint8_t>(call.kind) && header_.count == call.count &&
         header_.dtype == static_cast<uint8_t>(call.dtype) &&
         header_.op == static_cast<uint8_t>(call.op) && header_.root == call.root &&
         header_.signature == call.signature && algorithm() != Algorithm::kNothing &&
         call.op != ReduceOp::kPremulSum && call.detail.empty() && detail_.empty() &&
         call.messages == nullptr && call.gradients == nullptr && call.tail == nullptr &&
         call.part_of == nullptr;
}

void Operation::renew(const Call& call, uint64_t sequence, Milliseconds timeout, std::string site) {
  header_.sequence = sequence;
  record_ = call.record;
  record_.number(sequence, header_.algorithm);
  site_ = std::move(site);
  std::visit(
      [this](auto&& made) {
        schedule_.emplace<std::decay_t<decltype(made)>>(std::forward<decltype(made)>(made));
      },
      row_->schedule(call, peers_.view(), layout_, sequence));
  direct_.reset();
  locate(call);
  step_.store(0, std::memory_order_relaxed);
  quitter_.store(-1, std::memory_order_relaxed);
  timeout_ = timeout;
  deadline_.store(Clock::duration::max(), std::memory_order_relaxed);
  error_ = nullptr;
  done_.store(false, std::memory_order_relaxed);
}

uint64_t Operation::payload_bytes() const {
  return std::visit([](const auto& schedule) { return schedule.payload_bytes(); }, schedule_);
}

// It publishes before every step but the first.
uint32_t Operation::end_base() const {
  return std::visit([this](const auto& s) { return base() + s.steps() - 1; }, schedule_);
}

bool Operation::poll(uint32_t base) {
  base_.store(base, std::memory_order_relaxed);
  if (span != nullptr && span->begun == 0) span->begun = span_clock();
  if (!direct()) {
    const bool done = poll_staged(base);
    if (!direct()) return done;
  }
  return poll_direct();
}

bool Operation::poll_staged(uint32_t base) {
  if (algorithm() == Algorithm::kNothing) {
    record_.start();
    return true;
  }
  uint32_t at = step();
  if (at == 0) {  // it publishes the header, which must be in place before
    ControlBlock& control = peers_.own_control_block();
    CallNotice& notice = notice_in(control, header_.sequence);
    notice.header = header_;
    if (has_detail(header_)) cut_text(notice.detail, kDetailBytes, detail_.c_str());
    // Zero from the start: written where sites are asked for, be it to take one away.
    if (environment().call_sites) cut_text(notice.site, kSiteBytes, site_.c_str());
    control.note_cpu();
  }
  const auto checked = [this](uint32_t next) {
    if (next != 1) return true;
    if (span != nullptr) span->met = span_clock();
    record_.start();
    return read_headers();
  };
  const bool done = std::visit(
      [&](const auto& schedule) { return run_steps(schedule, executor_, base, at, checked); },
      schedule_);
  step_.store(direct_ == nullptr ? at : kDirect, std::memory_order_relaxed);
  if (span != nullptr && span->met == 0) span->last = awaited_peer();
  return done;
}

bool Operation::awaits(int peer) const {
  if (peer == quitter_.load(std::memory_order_relaxed)) return true;
  const uint32_t at = step();
  if (at == 0 || at == kDirect || peer == peers_.rank()) return false;
  // Zero from the start: written if sites are asked for, even to take one away.
  if ((at & kDirect) != 0) {
    return !reached(load_flag(peers_.view().flags[peer]), direct_base() + (at & ~kDirect));
  }
  const WaitFor wait = std::visit([at](const auto& s) { return s.wait_for(at); }, schedule_);
  return peer >= wait.first && peer < wait.first + wait.count &&
         !reached(load_flag(peers_.view().flags[peer]), base() + at);
}

int Operation::awaited_peer() const {
  for (int peer = 0; peer < peers_.size(); ++peer) {
    if (awaits(peer)) return peer;
  }
  return -1;
}

std::vector<int> Operation::late() const {
  std::vector<int> awaited, slowest;
  int32_t nearest = INT32_MAX, least = INT32_MAX;  // publications of both, from here
  for (int peer = 0; peer < peers_.size(); ++peer) {
    if (peer == peers_.rank()) continue;
    const auto published = static_cast<int32_t>(load_flag(peers_.view().flags[peer]) - base());
    if (awaits(peer)) {
      awaited.push_back(peer);
      nearest = std::min(nearest, published);
    }
    if (published < least) {
      least = published;
      slowest.clear();
    }
    if (published == least) slowest.push_back(peer);
  }
  return least < nearest && !awaited.empty() ? slowest : awaited;
}

bool Operation::crowded() const {
  const int peer = awaited_peer();
  return peer >= 0 && peers_.control_block(peer).cpu.load(std::memory_order_relaxed) ==
                          peers_.own_control_block().cpu.load(std::memory_order_relaxed);
}

void Operation::check_headers() const {
  uint64_t balance = 0;
  for (int peer = 0; peer < peers_.size(); ++peer) {
    const CallHeader& theirs = notice_of(peer).header;
    if (!same_call(theirs, header_)) raise_unlike();
    balance += theirs.balance;
  }
  if (balance != 0) raise_unbalanced();
}

// All headers are there and stay, so every rank comes to the same result.
void Operation::raise_unlike() const {
  // By their numbers in messages; no header is known of other ranks of a larger group.
  std::vector<const CallHeader*> headers(static_cast<size_t>(peers_.whole_size()));
  std::vector<int> ranks(headers.size(), -1);
  for (int rank = 0; rank < peers_.size(); ++rank) {
    headers[peers_.number_of(rank)] = &notice_of(rank).header;
    ranks[peers_.number_of(rank)] = rank;
  }
  const Unlike unlike =
      tell_unlike(headers, [&](int number) { return describe_call(notice_of(ranks[number])); });
  throw MismatchError(concat(unlike.text,
                             ". No memory was touched. Make every rank issue the same operations "
                             "in the same order with equal sizes and dtypes"),
                      unlike.calls.brief(), unlike.odd < 0 ? -1 : ranks[unlike.odd]);
}

void Operation::raise_unbalanced() const {
  Told told;
  for (int rank = 0; rank < peers_.size(); ++rank) {
    told.add({peers_.number_of(rank)}, describe_call(notice_of(rank)));
  }
  throw MismatchError(
      concat("the split sizes of the ranks do not fit each other: ", told.text(),
             ". No memory was touched. What a rank sends to another must be what that expects"),
      told.brief(), -1);
}

std::string Operation::progress_of(int peer) const {
  if (reached(load_flag(peers_.view().flags[peer]), base() + 1)) {
    return concat(peers_.describe(peer), " is in the middle of it");
  }
  const std::string late = concat(peers_.describe(peer), " has not called it");
  const std::string doing = peers_.activity(peer);
  const std::string now = doing.empty() ? "" : ": " + doing;
  if (header_.sequence == 0) return late + ", nor anything before" + now;
  // Every rank has entered the previous operation, and this rank saw its flag there, after the
  // notice. The notice stays until the rank begins the next operation but one, which cannot be
  // before this rank has entered the next.
  return concat(late, "; the last it called was ",
                describe_call(notice_in(peers_.control_block(peer), header_.sequence - 1)), now);
}

void Operation::finish(std::exception_ptr error) {
  error_ = std::move(error);
  if (span != nullptr) end_span(std::move(span), error_ != nullptr);
  // Moved out, so that its captures (a work that holds this operation, for one) are let go.
  const auto callback = std::move(on_finish);
  on_finish = nullptr;
  if (callback) callback(*this, error_);
  // Release: a thread that sees done() sees the results and the error.
  done_.store(true, std::memory_order_release);
}

}  // namespace fastcomm
