#include "c10d/engines/hosts/host_exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "coll/describe_call.h"
#include "coll/unlike.h"

namespace fastcomm {
namespace {

at::Tensor bytes(uint64_t count) {
  return at::empty({static_cast<int64_t>(std::max<uint64_t>(count, 1))}, at::kByte);
}

}  // namespace

struct HostExchange::Envelope {
  CallHeader header;
  char detail[kDetailBytes];
  char data[kEnclosedBytes];
};

HostExchange::HostExchange(HostLayout layout, const HostThresholds& thresholds, int ranks,
                           Wire::BackendPtr gloo)
    : layout_(std::move(layout)),
      thresholds_(thresholds),
      ranks_(ranks),
      wire_(std::move(gloo)),
      written_(layout_.hosts.size()),
      received_(layout_.hosts.size()),
      awaited_(layout_.hosts.size()) {}

char* HostExchange::scratch(uint64_t count) {
  if (!scratch_.defined() || static_cast<uint64_t>(scratch_.numel()) < count) {
    scratch_ = bytes(count);
  }
  return static_cast<char*>(scratch_.data_ptr());
}

void HostExchange::begin(const HostCall& call, HostPath path) {
  own_ = make_header(call.call, call.sequence, static_cast<uint8_t>(path));
  each_other([&](int host) {
    if (!posted_) {
      written_[host] = bytes(sizeof(Envelope));
      for (at::Tensor& each : received_[host]) each = bytes(sizeof(Envelope));
      post_envelope(host, parity());
    }
    post_envelope(host, 1 - parity());
  });
  posted_ = true;
}

Mail HostExchange::early_mail(uint64_t bytes) {
  int power = 0;
  while ((uint64_t{1} << power) < bytes) ++power;
  return static_cast<Mail>(static_cast<int>(Mail::kEarly) + power);
}

uint64_t HostExchange::early_length(uint64_t bytes) {
  return uint64_t{1} << (static_cast<int>(early_mail(bytes)) - static_cast<int>(Mail::kEarly));
}

void HostExchange::post_envelope(int host, int parity) {
  awaited_[host][parity] = wire_.receive(layout_.counterpart(host), Mail::kEnvelope,
                                         received_[host][parity].data_ptr(), sizeof(Envelope));
}

void HostExchange::send_envelope(const HostCall& call, int host, const void* data, size_t count) {
  auto* envelope = static_cast<Envelope*>(written_[host].data_ptr());
  std::memset(envelope, 0, sizeof(*envelope));
  envelope->header = own_;
  cut_text(envelope->detail, kDetailBytes, call.call.detail.c_str());
  if (count != 0) std::memcpy(envelope->data, data, count);
  send(sent_envelopes_, host, Mail::kEnvelope, envelope, sizeof(Envelope));
}

const HostExchange::Envelope& HostExchange::received(int host) const {
  return *static_cast<const Envelope*>(received_[host][parity()].data_ptr());
}

void HostExchange::read_envelopes(const HostCall& call) {
  bool alike = true;
  each_other([&](int host) {
    Wire::wait(awaited_[host][parity()], call.look);
    alike = alike && same_call(received(host).header, own_);
  });
  if (alike) return;
  std::vector<const CallHeader*> headers(static_cast<size_t>(ranks_));
  std::vector<const char*> details(headers.size(), call.call.detail.c_str());
  headers[layout_.counterpart(own())] = &own_;
  each_other([&](int host) {
    headers[layout_.counterpart(host)] = &received(host).header;
    details[layout_.counterpart(host)] = received(host).detail;
  });
  bool numbers_alone = true;  // differ
  each_other([&](int host) {
    CallHeader renumbered = received(host).header;
    renumbered.sequence = own_.sequence;
    numbers_alone = numbers_alone && same_call(renumbered, own_);
  });
  const Unlike unlike = tell_unlike(headers, [&](int rank) {
    CallHeader shown = *headers[rank];
    if (!numbers_alone) shown.sequence = call.number;
    return describe_call(shown, has_detail(shown) ? details[rank] : "");
  });
  throw MismatchError(concat(unlike.text,
                             ". No memory was touched. Make every rank issue the same operations "
                             "in the same order with equal sizes and dtypes"),
                      unlike.calls.brief(), unlike.odd);
}

uint64_t HostExchange::balance() const {
  uint64_t sum = own_.balance;
  each_other([&](int host) { sum += received(host).header.balance; });
  return sum;
}

const char* HostExchange::enclosed(int host) const { return received(host).data; }

void HostExchange::end_envelopes(const HostCall& call) {
  ++envelopes_;
  wait(sent_envelopes_, call);
}

}  // namespace fastcomm
