// The calls that benchmarks/cpp/cuda_kernels.cu measures, on the host under the execution shim:
// each reads and writes what it says, in places that move on, and no other memory.
//
//   benchmark_calls_test [CASE [SEED]]
//
//   calls      every call, several times; the bytes that it wrote are counted
//   places     a walk gives places that do not overlap, and starts again at its end
#include "../../benchmarks/cpp/cuda_methods.h"

#include <set>

#include "check.h"

namespace fastcomm::testing {
namespace {

using namespace fastcomm::benchmarks;

constexpr uint64_t kBytes = uint64_t{256} << 10;
constexpr char kUntouched = 0x5a;

/// Bytes of the destination that a call has written, except those that happen to be unchanged.
uint64_t written(Device& device, const Method& method) {
  char* const begin = device.to.begin();
  const uint64_t room = device.to.bytes();
  std::memset(begin, kUntouched, room);
  method.call();
  must(cudaStreamSynchronize(device.stream), "cudaStreamSynchronize");
  uint64_t count = 0;
  for (uint64_t i = 0; i < room; ++i) count += begin[i] != kUntouched;
  return count;
}

CASE(calls) {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  Device device{Walk(17 * 2 * kBytes, 1), Walk(16 * kBytes, 2), stream};
  for (const Method& method : methods_for(device, kBytes)) {
    const std::string what = concat(method.name, " of ", method.sources, ", ", method.dtype, ", ",
                                    method.layout, ", ", method.segments);
    const bool norm = method.name == "gradient_norm";
    const uint64_t parts = norm ? 1 : method.sources + 1;
    EXPECT(method.moved % parts == 0, what, ": ", method.moved);
    const uint64_t each = method.moved / parts;
    EXPECT(each <= kBytes && each > kBytes / 2, what, ": ", each, " bytes of each source");
    const uint64_t wrote = written(device, method);
    EXPECT(wrote <= (norm ? 0 : each), what, " wrote ", wrote);
    EXPECT(norm || wrote > each / 10 * 9, what, " wrote ", wrote, " of ", each);
    for (int i = 0; i < 3; ++i) method.call();  // to the end of the memory, and from its start
    must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  EXPECT(written(device, plain_copy(device, kBytes)) > kBytes / 10 * 9, "a copy");
  must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  must(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

CASE(places) {
  Walk walk(10 * kGap, 1);
  std::set<char*> seen;
  for (int i = 0; i < 3; ++i) seen.insert(walk.take(2 * kGap + 1));  // three times three gaps
  EXPECT(seen.size() == 3 && *seen.rbegin() - *seen.begin() == 6 * kGap, "apart");
  EXPECT(walk.take(2 * kGap) == *seen.begin(), "from the beginning");
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
