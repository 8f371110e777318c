// Runs the fuzz target without a fuzzer.
//
//   replay mutate SEED COUNT    pseudo-random changes of valid inputs: the same for the same seed
//   replay FILE...              runs each file as an input: what a fuzzer left behind
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "valid_inputs.h"

extern "C" int LLVMFuzzerInitialize(int*, char***);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using fastcomm::testing::Bytes;
using fastcomm::testing::valid_inputs;

Bytes mutated(const Bytes& valid, std::mt19937_64& bits) {
  Bytes input = valid;
  input.resize(input.size() + bits() % 24, 0);
  for (uint64_t changes = bits() % 8; changes > 0; --changes) {
    const size_t at = bits() % input.size();
    switch (bits() % 4) {
      case 0:
        input[at] = static_cast<uint8_t>(bits());
        break;
      case 1:
        input.insert(input.begin() + at, static_cast<uint8_t>(bits()));
        break;
      case 2:
        if (input.size() > 1) input.erase(input.begin() + at);
        break;
      default:  // small numbers choose what to do
        input[at] = static_cast<uint8_t>(bits() % 8);
    }
  }
  if (bits() % 8 != 0) input[0] = valid[0];
  return input;
}

const Bytes* running = nullptr;

/// On the way out of a failure: the input, for `replay FILE` after `xxd -r -p`.
void tell_input(int signal) {
  if (running != nullptr) {
    std::fprintf(stderr, "\nthe input was: ");
    for (const uint8_t byte : *running) std::fprintf(stderr, "%02x", byte);
    std::fprintf(stderr, "\n");
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run(const Bytes& input) {
  running = &input;
  alarm(20);  // nothing may hang
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

int mutate(uint64_t seed, uint64_t count) {
  std::mt19937_64 bits(seed);
  const std::vector<Bytes> valid = valid_inputs();
  for (const Bytes& input : valid) run(input);
  for (uint64_t i = 0; i < count; ++i) {
    const Bytes input = mutated(valid[bits() % valid.size()], bits);
    run(input);
  }
  std::printf("%llu inputs of seed %llu\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(seed));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  LLVMFuzzerInitialize(&argc, &argv);
  for (const int signal : {SIGALRM, SIGABRT}) std::signal(signal, tell_input);
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "mutate" && argc == 4) {
    return mutate(std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10));
  }
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const Bytes input{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    run(input);
    std::printf("%s: %zu bytes\n", argv[i], input.size());
  }
  return argc > 1 ? 0 : 2;
}
