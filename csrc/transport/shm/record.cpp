#include "transport/shm/record.h"

#include <cstring>
#include <type_traits>

#include "core/control.h"
#include "core/error.h"
#include "transport/peer_view.h"
#include "transport/shm/room.h"

namespace fastcomm {
namespace {

static_assert(std::is_trivially_copyable_v<Record> && std::is_trivially_copyable_v<GroupConfig>);

// Far above the limits of FASTCOMM_ONE_SHOT_BYTES and FASTCOMM_BLOCK_BYTES, and far below an
// overflow of the arithmetic of scratch.
constexpr uint64_t kMostConfigBytes = uint64_t{1} << 30;

void require(bool good, int peer, const char* what) {
  if (good) return;
  throw Error(ErrorCode::kSystem,
              concat("the store holds no valid ", what, " of rank ", peer,
                     ": install the same fastcomm for every rank, and let nobody else write to the "
                     "store"));
}

}  // namespace

GroupConfig parse_config(const std::string& bytes) {
  GroupConfig config;
  require(bytes.size() == sizeof(config), 0, "configuration");
  std::memcpy(&config, bytes.data(), sizeof(config));
  for (const uint64_t value : {config.payload_bytes, config.block_bytes, config.rotation_bytes}) {
    require(value >= kLineBytes && value % kLineBytes == 0 && value <= kMostConfigBytes, 0,
            "configuration");
  }
  return config;
}

Record parse_record(const std::string& bytes, int peer) {
  Record record{};
  if (!FC_LEFT_OUT(Control::kForgetRecordLength)) {
    require(bytes.size() == sizeof(record), peer, "record");
  }
  std::memcpy(&record, bytes.data(), sizeof(record));
  record.listener[sizeof(record.listener) - 1] = '\0';
  record.why_not[sizeof(record.why_not) - 1] = '\0';
  const bool shares = record.listener[0] != '\0' && record.version == kProtocolVersion;
  require(!shares || record.room >= kLeastRoom, peer, "record");
  return record;
}

void check_mask(const std::string& mask, int size, int peer) {
  require(
      mask.size() == static_cast<size_t>(size) && mask.find_first_not_of("01") == std::string::npos,
      peer, "list of peers");
}

}  // namespace fastcomm
