// What a call's record costs: nanoseconds of a batch's calls, one line a batch.
//
//   record_cost BATCHES CALLS
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "core/records.h"

int main(int argc, char** argv) {
  using namespace fastcomm;
  if (argc != 3) return 2;
  const int batches = std::atoi(argv[1]), calls = std::atoi(argv[2]);
  constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
  void* const memory =
      mmap(nullptr, sizeof(records::File), PROT_READ | PROT_WRITE, kPrivate, -1, 0);
  if (memory == MAP_FAILED) return 1;
  Records records(memory, -1, "");
  Records::AboutCall about{};
  std::printf("%s\n", has_counter() ? "counter" : "clock");
  for (int batch = 0; batch < batches; ++batch) {
    const uint64_t begin = monotonic_ns();
    for (int call = 0; call < calls; ++call) {
      const CallRecord record = records.begin(about);
      record.number(static_cast<uint64_t>(call), 2);
      record.start();
      record.end(records::kWell);
    }
    const uint64_t all = monotonic_ns() - begin;
    const uint64_t clock_begin = monotonic_ns();
    uint64_t sum = 0;
    for (int call = 0; call < calls; ++call) sum += ticks() + ticks() + ticks();
    const uint64_t readings = monotonic_ns() - clock_begin;
    if (sum == 0) return 1;
    std::printf("%.2f %.2f\n", static_cast<double>(all) / calls,
                static_cast<double>(readings) / calls);
  }
}
