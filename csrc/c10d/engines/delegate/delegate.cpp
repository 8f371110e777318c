#include "c10d/engines/delegate/delegate.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <stdexcept>

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

/// The meaning of Gloo's text: a connection that ended for any reason, a wait, a barrier.
ErrorCode code_in(const std::string& text) {
  if (says(text, {"imed out", "imeout", "monitoredBarrier"})) return ErrorCode::kTimeout;
  if (says(text, {"closed", "reset by peer", "Broken pipe", "ECONNRESET"})) {
    return ErrorCode::kPeerLost;
  }
  return ErrorCode::kSystem;
}

const char* advice(ErrorCode code) {
  switch (code) {
    case ErrorCode::kTimeout:
      return ". Look what the other ranks are doing, or raise timeout=; this process group cannot "
             "be "
             "used any more";
    case ErrorCode::kPeerLost:
      return ". A rank died, or gave the group up: look at the others' output for the cause; this "
             "process group cannot be used any more, create a new one";
    default:
      return "; this process group cannot be used any more, create a new one";
  }
}

/// Removes the place in the backend's sources: "[/.../pair.cc:545] Connection closed".
std::string without_place(const std::string& text) {
  const size_t end = text.find("] ");
  if (text[0] != '[' || end == std::string::npos) return text;
  const std::string place = text.substr(0, end);
  const bool is_one = says(place, {".cc:", ".cpp:", ".h:"}) && !says(place, {" "});
  return is_one ? text.substr(end + 2) : text;
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

void Delegate::look_at_wait(WaitWarning& warning, const Subject& subject) const {
  warning.look(Clock::now(), label_, [&](Clock::duration so_far) {
    return front(subject) + concat(waited(so_far), " for ", kind_.name,
                                   ", which does not say for which rank", at_site(subject.site),
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
  if (beside_.whole != nullptr) other = beside_.whole->failure();
  return other == nullptr ? nullptr : give_up(code_of(other), what_of(other));
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
  return give_up(
      subject, code,
      concat(kind_.name, ": ", without_place(text), at_site(subject.site), advice(code)));
}

std::exception_ptr Delegate::give_up(const Subject& subject, ErrorCode code,
                                     const std::string& what) {
  std::exception_ptr error;
  if (beside_.whole != nullptr) error = beside_.whole->give_up(subject, code, what);
  // The communicator may know of a peer that died, which tells more, and tells the others.
  if (beside_.memory != nullptr) error = beside_.memory->failed(subject.operation, code, what);
  if (error != nullptr) return give_up(code_of(error), what_of(error));
  return give_up(code, front(subject) + what);
}

std::exception_ptr Delegate::give_up(ErrorCode code, const std::string& text) {
  // Noted first: operations that end because of this find the reason.
  if (note(Error(code, text))) {
    const std::lock_guard<std::mutex> lock(end_mutex_);
    try {
      if (inner_ != nullptr && kind_.end) kind_.end(*inner_);
    } catch (const std::exception& error) {  // it has failed, and this is not the reason
      LOG(WARNING) << "fastcomm: " << kind_.name << " could not be ended: " << error.what();
    }
  }
  return noted();
}

bool Delegate::note(const Error& error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_ != nullptr) return false;
  failure_ = std::make_exception_ptr(error);
  return true;
}

void Delegate::leave(const Subject& subject) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_ != nullptr) return;
  failure_ = std::make_exception_ptr(Error(
      ErrorCode::kPoisoned, front(subject) + "this process group was destroyed; create a new one"));
  left_ = true;
}

void Delegate::forget() {
  const std::lock_guard<std::mutex> lock(end_mutex_);
  inner_ = nullptr;
}

}  // namespace fastcomm
