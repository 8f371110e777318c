// Random numbers on the CPU for callers that run at the same time: torch has one generator for all
// threads.
//
// In a pass, part 0 draws from the generator of the thread that began the pass; each other part
// from a stream of its own, derived from that generator's state when the pass began. So the numbers
// of a part depend on no other part.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace fastcomm {

/// All state that determines a CPU generator's next numbers.
struct RandomState {
  at::mt19937_data_pod engine;
  std::optional<float> next_float;
  std::optional<double> next_double;
};

class RandomPass : public std::enable_shared_from_this<RandomPass> {
 public:
  /// Begins a pass: notes the state of this thread's generator.
  RandomPass();

  /// From here on this thread is `part`, until it calls leave().
  void enter(int64_t part);
  static void leave();

  /// Ends the pass, when all parts have left. If any of them has drawn and part 0 has not, the
  /// generator moves on by one number: otherwise the next pass would draw the same.
  void settle();

  at::Generator stream(int64_t part);

 private:
  RandomState derived(int64_t part) const;

  at::Generator own_;
  RandomState begin_;
  std::mutex mutex_;                          // of streams_
  std::map<int64_t, at::Generator> streams_;  // of parts that asked for their stream
};

/// The generator of this thread: torch's default one outside of a pass.
at::Generator random_generator();

}  // namespace fastcomm
