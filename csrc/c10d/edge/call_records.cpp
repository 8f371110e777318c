#include "c10d/edge/call_records.h"

#include <utility>

#include "c10d/requests/convert.h"
#include "c10d/works/lanes.h"
#include "transport/fork.h"

namespace fastcomm {
namespace {

// As the classes of fastcomm/errors.py.
constexpr const char* kErrors[] = {
    "CollectiveArgumentError", "UnsupportedError",       "CommunicationSystemError",
    "CollectiveMismatchError", "CollectiveTimeoutError", "PeerLostError",
    "PeerLeftError",           "GroupPoisonedError",     "ForkedProcessError"};

// Names of engines; others are "another backend".
constexpr const char* kEngines[] = {
    "another backend",        "shared memory", "Gloo",         "NCCL",
    "shared memory and Gloo", "peer-to-peer",  "pinned memory"};

/// Names of the numbers in a record.
std::string names() {
  std::string all;
  const auto add = [&all](const char* kind, int number, std::string_view name) {
    all += concat(kind, "\t", number, "\t", name, "\n");
  };
  for (int kind = 0; kind < kNumOpKinds; ++kind) add("operation", kind, kOpKindNames[kind]);
  for (int op = 0; op < kNumReduceOps; ++op) {
    add("reduction", op, reduce_op_name(static_cast<ReduceOp>(op)));
  }
  for (int type = 0; type < static_cast<int>(at::ScalarType::Undefined); ++type) {
    add("dtype", type, c10::getDtypeNames(static_cast<at::ScalarType>(type)).first);
  }
  add("dtype", static_cast<int>(at::ScalarType::Undefined), "none");
  for (int path = 1; path <= static_cast<int>(Algorithm::kComposed); ++path) {
    add("path", path, algorithm_name(static_cast<Algorithm>(path)));
  }
  for (int engine = 0; engine < static_cast<int>(std::size(kEngines)); ++engine) {
    add("engine", engine, kEngines[engine]);
  }
  add("outcome", records::kWell, "ok");
  for (int code = 0; code < static_cast<int>(std::size(kErrors)); ++code) {
    add("outcome", records::outcome_of(static_cast<ErrorCode>(code)), kErrors[code]);
  }
  add("outcome", records::kUnknown, "unknown");
  return all;
}

/// "group '0' of all 2 ranks" of a label, and the name between its quotes.
std::pair<std::string, std::string> words_of(const std::string& label) {
  std::string words = label.substr(std::min(label.find("group "), label.size()));
  while (!words.empty() && (words.back() == ' ' || words.back() == ':')) words.pop_back();
  const size_t begin = words.find_first_of("'\"");
  if (begin == std::string::npos) return {"", words};
  return {words.substr(begin + 1, words.find(words[begin], begin + 1) - begin - 1), words};
}

uint8_t number_of(const Engine& engine) {
  uint8_t number = engine.recorded_as.load(std::memory_order_relaxed);
  if (number != Engine::kNoNumber) return number;
  const auto* const found = std::find(std::begin(kEngines), std::end(kEngines), engine.name());
  number = found == std::end(kEngines) ? 0 : static_cast<uint8_t>(found - std::begin(kEngines));
  engine.recorded_as.store(number, std::memory_order_relaxed);
  return number;
}

/// Sets the size of one rank's message: of a gather or an exchange, what it gives; of a scatter,
/// what it gets.
void set_size(Records::AboutCall& about, const Request& request) {
  for (const at::Tensor& tensor : request.decisive()) {
    if (!tensor.defined()) continue;
    if (about.count == 0) about.dtype = static_cast<uint8_t>(tensor.scalar_type());
    const auto count = static_cast<uint64_t>(tensor.numel());
    about.count += count;
    about.bytes += count * tensor.element_size();
  }
}

}  // namespace

void open_records() { Records::open(names()); }

RecordsOfGroup::RecordsOfGroup(int rank, int size, uint64_t token, const std::string& label,
                               const std::vector<uint64_t>& members)
    : records_(Records::instance()) {
  if (records_ == nullptr) return;
  const auto [name, words] = words_of(label);
  group_ = records_->open_group({{0, token}, rank, size, name, words, members});
  is_open_ = true;
}

RecordsOfGroup& RecordsOfGroup::operator=(RecordsOfGroup&& other) noexcept {
  std::swap(records_, other.records_);
  std::swap(group_, other.group_);
  std::swap(is_open_, other.is_open_);
  return *this;
}

void RecordsOfGroup::close() noexcept {
  if (std::exchange(is_open_, false) && !forked_from_endpoint()) records_->close_group(group_);
}

Records::AboutCall RecordsOfGroup::about(OpKind kind, const Engine& engine) const {
  Records::AboutCall about{};
  about.operation = static_cast<uint8_t>(kind);
  about.dtype = static_cast<uint8_t>(at::ScalarType::Undefined);
  about.engine = number_of(engine);
  about.group = group_;
  return about;
}

CallRecord RecordsOfGroup::begin(const ShortCall& call, at::ScalarType type,
                                 const Engine& engine) const {
  if (records_ == nullptr || forked_from_endpoint()) return {};
  Records::AboutCall about = this->about(call.kind, engine);
  about.sequence = engine.next_number();
  about.reduction = static_cast<uint8_t>(call.op);
  about.dtype = static_cast<uint8_t>(type);
  about.count = call.count;
  about.bytes = call.bytes();
  return records_->begin(about);
}

CallRecord RecordsOfGroup::begin(const Request& request, const Engine& engine,
                                 const Continuations::Ptr& continuations) const {
  if (records_ == nullptr || forked_from_endpoint()) return {};
  const bool is_message = request.is_message();
  Records::AboutCall about = this->about(request.kind, engine);
  if (request.op != nullptr) about.reduction = static_cast<uint8_t>(reduce_op_of(*request.op));
  about.flags = (request.async ? records::kAsync : 0) | (is_message ? records::kMessage : 0);
  about.rank = is_message ? request.peer : static_cast<int>(request.root);
  about.tag = request.tag;
  if (!is_message) about.sequence = engine.next_number();
  if (Continuations::is_inside()) {
    about.lane = LaneName::of(Continuations::here(), continuations).number();
  }
  set_size(about, request);
  return records_->begin(about);
}

}  // namespace fastcomm
