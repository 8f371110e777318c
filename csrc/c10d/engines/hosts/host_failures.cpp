#include "c10d/engines/hosts/host_failures.h"

#include <cctype>

#include "c10d/life/exception.h"
#include "core/call_site.h"

namespace fastcomm {
namespace {

/// A text of calls without their numbers: inside a host each step has one.
std::string without_numbers(std::string text) {
  const std::string before = "), sequence ";
  for (size_t at = 0; (at = text.find(before, at)) != std::string::npos;) {
    size_t end = at + before.size();
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
    ++at;  // behind the bracket
    text.erase(at, end - at);
  }
  return text;
}

}  // namespace

std::exception_ptr HostFailures::of(Delegate::Subject subject,
                                    const std::exception_ptr& error) const {
  if (const auto first = whole_->failure()) return first;
  if (is_leaving()) return error;
  try {
    std::rethrow_exception(error);
  } catch (const MismatchError& mismatch) {  // between hosts
    subject.peer = mismatch.odd;
    return whole_->give_up(subject, mismatch.code(), mismatch.what() + at_site(subject.site));
  } catch (const Error& own) {
    const auto blame = inside_->blame();
    if (!blame && inside_->failure() != nullptr) return error;  // it was left
    if (!blame) return whole_->give_up(subject, own.code(), without_front(own.what()));
    subject.peer = blame->peer;
    const std::string text = without_numbers(blame->text);
    const bool others =
        blame->told || blame->code == ErrorCode::kPeerLost || blame->code == ErrorCode::kPeerLeft;
    if (others) return whole_->lost_inside(subject, blame->code, text);
    const bool mismatch = blame->code == ErrorCode::kMismatch;
    return whole_->give_up(subject, own.code(), mismatch ? text : without_front(own.what()));
  } catch (...) {  // the wire's
    return whole_->lost(subject, error);
  }
}

void HostFailures::tell_inside(const char* operation, const std::exception_ptr& failure) const {
  inside_->failed(operation, code_of(failure), without_front(what_of(failure)));
}

}  // namespace fastcomm
