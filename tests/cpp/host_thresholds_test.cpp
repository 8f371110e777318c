// Limits of messages between hosts, and how ranks tell them (coll/host_thresholds.h).
//
//   host_thresholds_test [CASE [SEED]]
#include "coll/host_thresholds.h"

#include "check.h"

namespace fastcomm::testing {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

bool is_refused(const HostTuning& tuning) {
  try {
    set_host_tuning(3, 3, tuning);
    return false;
  } catch (const Error&) {
    return true;
  }
}

/// What is measured holds for its numbers of hosts and ranks, and has the settings' bounds.
CASE(tuned) {
  set_host_tuning(2, 4, {4 * kKiB, 0});
  const HostThresholds set = choose_host_thresholds(2, 4);
  EXPECT(set.short_bytes == 4 * kKiB && set.short_by == ChosenBy::kTuning, "as tuned");
  EXPECT(set.chunk_bytes == 0 && set.chunk_by == ChosenBy::kDefault, "what was not is as it was");
  const HostThresholds other = choose_host_thresholds(4, 2);
  EXPECT(other.short_bytes == HostThresholds::kShortBytes, "of others the default");
  for (const uint64_t length : {kKiB, 3 * kKiB, 2 * kMiB}) {
    EXPECT(is_refused({length, 0}), "short up to ", length);
  }
  for (const uint64_t length : {kKiB, 4 * kKiB + 64, 65 * kMiB}) {
    EXPECT(is_refused({0, length}), "chunks of ", length);
  }
  EXPECT(!is_refused({kMiB, 64 * kMiB}) && !is_refused({2 * kKiB, 4 * kKiB}), "the ends");
}

CASE(chunks) {
  HostThresholds taken;
  const auto of = [&](uint64_t mib) { return taken.chunk_of(mib * kMiB) / kMiB; };
  EXPECT(taken.chunk_of(1) == kMiB && of(8) == 1 && of(12) == 2 && of(25) == 4 && of(1000) == 4,
         "by the message");
  taken.chunk_bytes = 8 * kMiB;
  EXPECT(of(1) == 8 && of(1000) == 8, "whatever the message");
}

/// The others read what rank 0 writes, and nothing that no setting could have.
CASE(told) {
  HostThresholds own{128 * kKiB, 64 * kKiB, ChosenBy::kTuning, ChosenBy::kEnvironment};
  const HostThresholds read = HostThresholds::from_text(own.as_text());
  EXPECT(read.described() == own.described(), read.described(), " / ", own.described());
  EXPECT(read.short_bytes == own.short_bytes && read.chunk_bytes == own.chunk_bytes, "the values");
  for (const char* text : {"", "ok", "65536", "65537 0 0 0", "0 0 0 0", "65536 17 0 0",
                           "65536 0 0 3", "4294967296 0 0 0", "65536 -1 0 0"}) {
    const HostThresholds none = HostThresholds::from_text(text);
    EXPECT(none.as_text() == HostThresholds{}.as_text(), text, ": ", none.as_text());
  }
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
