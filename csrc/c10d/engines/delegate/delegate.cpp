#include "c10d/engines/delegate/delegate.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <thread>

#include "c10d/life/exception.h"
#include "core/call_site.h"

namespace fastcomm {
namespace {

bool says(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* each : words) {
    if (text.find(each) != std::string::npos) return true;
  }
  return false;
}

/// True if the error is about this rank's call alone: then nothing was sent. A barrier takes no
/// argument that could be wrong.
bool of_arguments(const Delegate::Subject& subject, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    return true;
  } catch (const TorchError&) {
    return true;
  } catch (const c10::DistError&) {
    return false;
  } catch (const c10::Error&) {
    return subject.operation != std::string("monitored_barrier");
  } catch (const std::logic_error&) {
    return true;
  } catch (const torch::PyTorchError&) {
    return true;
  } catch (const std::runtime_error&) {
    return false;
  } catch (...) {
    return true;
  }
}

/// The meaning of a backend's text: a wait, a barrier; a connection that ended for any reason, also
/// since the other end's host did not answer.
ErrorCode code_in(const std::string& text) {
  const bool connection = says(text, {"Connection timed out", "ETIMEDOUT"});
  if (!connection && says(text, {"imed out", "imeout", "monitoredBarrier"})) {
    return ErrorCode::kTimeout;
  }
  if (connection || says(text, {"closed", "reset by peer", "Broken pipe", "ECONNRESET"})) {
    return ErrorCode::kPeerLost;
  }
  return ErrorCode::kSystem;
}

const char* advice(ErrorCode code) {
  switch (code) {
    case ErrorCode::kTimeout:
      return ". Look what the other ranks are doing, or raise timeout=; this process group cannot "
             "be used any more";
    case ErrorCode::kPeerLost:
      return ". A rank died or gave the group up, or the network between hosts is cut: look at the "
             "others' output for the cause; this process group cannot be used any more, create a "
             "new one";
    default:
      return "; this process group cannot be used any more, create a new one";
  }
}

/// "Timed out waiting 700ms" of Gloo's "... for recv operation to complete"; else the text. A
/// monitored barrier's has this within what it tells of its ranks.
std::string in_own_words(const std::string& text) {
  constexpr const char* kWaiting = "Timed out waiting ";
  const size_t at = text.find(kWaiting);
  if (at == std::string::npos || says(text, {"monitoredBarrier"})) return text;
  const size_t begin = at + std::strlen(kWaiting), end = text.find("ms", begin);
  if (end == std::string::npos) return text;
  return text.substr(at, end + 2 - at);
}

/// Removes the place in the backend's sources: "[/.../pair.cc:545] Connection closed".
std::string without_place(const std::string& text) {
  const size_t end = text.find("] ");
  if (text[0] != '[' || end == std::string::npos) return text;
  const std::string place = text.substr(0, end);
  const bool is_one = says(place, {".cc:", ".cpp:", ".h:"}) && !says(place, {" "});
  return is_one ? text.substr(end + 2) : text;
}

/// The calls that others may still finish: a rank that sees a mismatch has done its part in those
/// before. After another failure they may wait for a rank that is not there.
uint64_t calls_before(const Delegate::Subject& subject, ErrorCode code) {
  return code == ErrorCode::kMismatch ? subject.sequence : 0;
}

/// Ends all connections of the group, at the other end too, like a receive that waits for too long.
void end_connections(::c10d::Backend& gloo) {
  constexpr int kTag = 0x7fffff00;  // a tag that nobody uses
  constexpr int kContexts = 8;      // a context for each network device, chosen by the tag
  for (int tag = kTag; tag < kTag + kContexts; ++tag) {
    for (int peer = 0; peer < gloo.getSize(); ++peer) {
      if (peer == gloo.getRank()) continue;
      try {
        std::vector<at::Tensor> nothing{at::empty({1})};
        gloo.recv(nothing, peer, tag)->wait(std::chrono::milliseconds(1));
      } catch (const std::exception&) {  // it took too long, or it was ended before
      }
    }
  }
}

}  // namespace

DelegateKind gloo_delegate() { return {"Gloo", /*blocks=*/true, end_connections}; }

std::string Delegate::front(const Subject& subject) const {
  return message_front(rank_, size_, subject.peer, subject.operation, subject.sequence);
}

std::string Delegate::late_ranks(const Subject& subject) const {
  // Messages have no number of their own. Those of what stands beside the group's calls are not
  // known to the links, which still know who does not answer.
  if (links() == nullptr || subject.peer >= 0) return "";
  return links()->late_ranks(links_ == nullptr ? 0 : subject.sequence + 1);
}

void Delegate::look_at_wait(WaitWarning& warning, const Subject& subject) const {
  warning.look(Clock::now(), label_, [&](Clock::duration so_far) {
    const std::string late = late_ranks(subject);
    std::string whom = concat(" for ", kind_.name, ", which does not say for which rank");
    if (links() != nullptr && subject.peer >= 0) whom = " for " + links()->describe(subject.peer);
    if (!late.empty()) whom = "; " + late;
    return front(subject) + concat(waited(so_far), whom, at_site(subject.site),
                                   ". See what the other ranks are doing");
  });
}

DelegateKind device_delegate(std::string name) {
  return {std::move(name), /*blocks=*/false, [](::c10d::Backend& inner) { inner.abort(); }};
}

std::exception_ptr Delegate::noted() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

std::exception_ptr Delegate::failure() {
  if (const auto own = noted()) return own;
  std::exception_ptr other;
  if (beside_.memory != nullptr) other = beside_.memory->failure();
  if (beside_.whole != nullptr) {
    other = beside_.whole->failure();
    if (other != nullptr && !beside_.whole->has_failed()) return other;  // it was left
  }
  return other == nullptr ? nullptr : give_up(code_of(other), what_of(other));
}

bool Delegate::has_failed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_ != nullptr && !left_;
}

std::exception_ptr Delegate::failed_before(const char* operation) {
  if (beside_.memory != nullptr) static_cast<void>(beside_.memory->failure_before(operation));
  failure();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_ == nullptr || left_) return failure_;
  return come_after(failure_, operation);
}

std::exception_ptr Delegate::failed(const Subject& subject, const std::exception_ptr& error) {
  return of_arguments(subject, error) ? error : lost(subject, error);
}

std::exception_ptr Delegate::lost(const Subject& subject, const std::exception_ptr& error) {
  if (const auto first = failure()) return first;  // which has ended this one, too
  const std::string text = what_of(error);
  const ErrorCode code = code_in(text);
  // Of a monitored barrier that another rank has given up.
  const bool echo = says(text, {"successfully reached monitoredBarrier"});
  if (links() != nullptr && (code != ErrorCode::kTimeout || echo)) {
    // Gloo's connections end for many reasons, and do not say which.
    if (const auto told = heard_soon()) return told;
    if (const auto left = without_one_that_left(subject)) return left;
  }
  return give_up_because(subject, code,
                         concat(kind_.name, ": ", in_own_words(without_place(text))));
}

std::exception_ptr Delegate::overdue(const Subject& subject, Milliseconds timeout) {
  if (const auto first = failure()) return first;
  return give_up_because(subject, ErrorCode::kTimeout, timed_out(timeout));
}

std::exception_ptr Delegate::give_up_because(const Subject& subject, ErrorCode code,
                                             const std::string& what) {
  const std::string late = code == ErrorCode::kTimeout ? late_ranks(subject) : "";
  return give_up(
      subject, code,
      concat(what, at_site(subject.site), late.empty() ? "" : "; " + late, advice(code)));
}

std::exception_ptr Delegate::lost_inside(const Subject& subject, ErrorCode code,
                                         const std::string& text) {
  // A death is known to the links, too, or soon; then all ranks tell it alike. What a peer had from
  // another rank tells less than that rank's own words.
  if (const auto told = heard_soon()) return told;
  if (const auto left = without_one_that_left(subject)) return left;
  return give_up(Error(code, front(subject) + text),
                 {code, subject.peer, rank_, text, calls_before(subject, code)});
}

std::exception_ptr Delegate::heard_soon() {
  return links() != nullptr && links()->hears_soon() ? failure() : nullptr;
}

void Delegate::leave_behind(uint64_t calls, uint64_t first) {
  if (links() == nullptr || noted() != nullptr) return;
  links()->tell({ErrorCode::kPeerLeft, rank_, rank_,
                 concat("it destroyed its process group with ", calls,
                        calls == 1 ? " call" : " calls", " under way"),
                 links_ == nullptr ? 0 : first});
}

bool Delegate::is_behind(uint64_t sequence) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(under_way_.begin(), under_way_.end(), [&](const UnderWay& each) {
    return !each.is_message && each.subject->sequence < sequence;
  });
}

std::exception_ptr Delegate::without_one_that_left(const Subject& subject) {
  if (links() == nullptr) return nullptr;
  for (const auto& [peer, how] : links()->left()) {
    if (subject.peer < 0 || subject.peer == peer) return give_up_without(peer, how, subject);
  }
  return nullptr;
}

std::exception_ptr Delegate::give_up(const Subject& subject, ErrorCode code,
                                     const std::string& what) {
  if (beside_.memory != nullptr) {
    // It may know of a peer that died, which tells more, and tells the others.
    const auto error = beside_.memory->failed(subject.operation, code, what);
    return give_up(code_of(error), what_of(error));
  }
  // What others raise as kPoisoned is this rank's doing.
  const int blamed = as_told(code) == ErrorCode::kPoisoned ? rank_ : subject.peer;
  return give_up(Error(code, front(subject) + what),
                 {code, blamed, rank_, what, calls_before(subject, code)});
}

std::exception_ptr Delegate::give_up_without(int peer, const std::string& how,
                                             const Subject& subject) {
  return give_up({subject.operation, peer, subject.sequence}, ErrorCode::kPeerLeft,
                 concat(links()->describe(peer), " ", how, "; this operation needs it",
                        at_site(subject.site)));
}

void Delegate::departed(int peer, const std::string& how, uint64_t issued) {
  std::optional<Subject> stuck;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_ != nullptr) return;
    for (const UnderWay& each : under_way_) {
      if (!each.is_message && each.subject->sequence >= issued) stuck = *each.subject;
    }
  }
  if (stuck) give_up_without(peer, how, *stuck);
}

std::exception_ptr Delegate::departed_from(const Subject& message) {
  if (links() == nullptr) return nullptr;
  const auto gone = links()->gone(message.peer);
  return gone ? give_up_without(gone->first, gone->second, message) : nullptr;
}

std::exception_ptr Delegate::give_up(ErrorCode code, const std::string& text) {
  return give_up(Error(code, text), {code, -1, rank_, without_front(text)});
}

std::exception_ptr Delegate::give_up(const Error& error, const Notice& notice) {
  if (beside_.whole != nullptr) {  // which tells the others: they do not know this one's numbers
    Notice told = notice;
    told.before = 0;
    const auto first = beside_.whole->give_up(error, told);
    if (!beside_.whole->has_failed()) return first;  // it was left
    return end_with(Error(code_of(first), what_of(first)), notice);
  }
  return end_with(error, notice);
}

std::exception_ptr Delegate::end_with(const Error& error, const Notice& notice) {
  // Noted first: operations that end because of this find the reason.
  if (note(error)) {
    if (links_ != nullptr) links_->tell(notice);
    const std::lock_guard<std::mutex> lock(end_mutex_);
    for (const auto& [owner, end] : also_end_) end(noted());
    try {
      if (inner_ != nullptr && kind_.end) kind_.end(*inner_);
    } catch (const std::exception& other) {  // it has failed, and this is not the reason
      LOG(WARNING) << "fastcomm: " << kind_.name << " could not be ended: " << other.what();
    }
  }
  return noted();
}

void Delegate::hear(const Notice& notice) {
  constexpr Milliseconds kToFinish{500};
  const Deadline end = Clock::now() + kToFinish;
  while (is_behind(notice.before) && Clock::now() < end) {
    std::this_thread::sleep_for(Milliseconds(1));
  }
  const ErrorCode code = as_told(notice.code);
  int blamed = notice.blamed;
  if (code == ErrorCode::kPoisoned && blamed < 0) blamed = notice.teller;
  if (blamed == rank_) blamed = notice.teller;
  std::string text;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Subject about{"none", blamed, begun_};
    if (!under_way_.empty()) {
      about = *under_way_.front().subject;
      about.peer = blamed;
    }
    text = front(about);
  }
  if (notice.teller != rank_) {
    text += concat(links_->describe(notice.teller), " gave the group up: ");
  }
  give_up(Error(code, text + notice.text), notice);
}

void Delegate::begin(const Subject& subject, bool is_message,
                     std::function<void(const std::exception_ptr&)> fail) {
  const std::lock_guard<std::mutex> lock(mutex_);
  under_way_.push_back({&subject, is_message, std::move(fail)});
  begun_ = subject.sequence;
}

void Delegate::end(const Subject& subject) {
  std::list<UnderWay> ended;  // destroyed without the lock: it may have the last reference
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(under_way_.begin(), under_way_.end(),
                                  [&](const UnderWay& each) { return each.subject == &subject; });
  if (found != under_way_.end()) ended.splice(ended.end(), under_way_, found);
}

bool Delegate::end_late_ones(bool at_once) {
  constexpr Milliseconds kGrace{100};    // to end by themselves
  constexpr Milliseconds kOthers{2000};  // to begin, for those who have not seen the failure
  std::list<UnderWay> late;
  std::exception_ptr why;
  Clock::duration since{};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_ == nullptr || left_) return false;  // then Gloo finishes what has begun
    since = Clock::now() - failed_at_;
    if (!at_once && since < kGrace) return true;
    late.swap(under_way_);
    why = failure_;
  }
  for (const UnderWay& each : late) each.fail(why);
  return since < kOthers;
}

bool Delegate::note(const Error& error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_ != nullptr) return false;
  failure_ = std::make_exception_ptr(error);
  failed_at_ = Clock::now();
  return true;
}

void Delegate::leave(const Subject& subject) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_ != nullptr) return;
  failure_ = std::make_exception_ptr(Error(
      ErrorCode::kPoisoned, front(subject) + "this process group was destroyed; create a new one"));
  left_ = true;
}

void Delegate::also_end(const void* owner, std::function<void(const std::exception_ptr&)> end) {
  const std::lock_guard<std::mutex> lock(end_mutex_);
  if (end == nullptr) {
    also_end_.erase(owner);
  } else {
    also_end_[owner] = std::move(end);
  }
}

void Delegate::forget() {
  const std::lock_guard<std::mutex> lock(end_mutex_);
  inner_ = nullptr;
}

}  // namespace fastcomm
