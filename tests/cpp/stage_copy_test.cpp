// Copies to where peers read them (kernels/stage_copy.h), near and far.
//
//   stage_copy_test [CASE [SEED]]
#include "kernels/stage_copy.h"

#include "check.h"

namespace fastcomm::testing {
namespace {

/// Every intended byte, and none around it, whichever way is taken.
CASE(copies) {
  std::mt19937_64 random(seed);
  constexpr size_t kMost = 200'000, kMargin = 128;
  std::vector<char> from(kMost), to(kMost + 2 * kMargin);
  for (char& byte : from) byte = static_cast<char>(random() | 1);
  for (int repeat = 0; repeat < 400; ++repeat) {
    const bool far = repeat % 2 == 0;
    StageCopy stage;
    const size_t first = random() % 65;
    const size_t bytes = random() % (repeat % 4 < 2 ? 20'000 : kMost - first);
    const size_t at = kMargin + random() % 64;
    std::fill(to.begin(), to.end(), 0);
    stage.copy(to.data() + at, from.data() + first, bytes,
               {far ? Clock::duration(-1) : Clock::duration::max()});
    std::vector<char> wanted(to.size());
    std::copy_n(from.begin() + static_cast<long>(first), bytes,
                wanted.begin() + static_cast<long>(at));
    EXPECT(to == wanted, bytes, " bytes at ", at, far ? ", far" : ", near");
    EXPECT(stage.far() == (far && bytes >= 16 * 1024), "what was timed, of ", bytes);
  }
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
