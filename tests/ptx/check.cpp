// Reads PTX and decodes it, or runs a kernel of it without a host program:
//
//   check FILE...                      decodes all kernels, and prints how many there are
//   check FILE KERNEL THREADS WORD...  runs a block of a kernel, whose one parameter is the address
//                                      of an array of the words of 64 bits, and prints them
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "machine.h"

namespace fastcomm::ptx {
namespace {

void decode_all(int count, char** names) {
  size_t kernels = 0;
  for (int i = 0; i < count; ++i) {
    Program program(names[i]);
    for (const std::string& each : program.kernels()) program.function(each);
    kernels += program.kernels().size();
  }
  std::cout << kernels << " kernels\n";
}

void run(const char* file, const char* kernel, const char* threads, int count, char** given) {
  Program program(file);
  std::vector<uint64_t> words;
  for (int i = 0; i < count; ++i) words.push_back(std::strtoull(given[i], nullptr, 0));
  add_range(words.data(), words.size() * sizeof(uint64_t), words.data());
  const std::shared_ptr<char[]> parameters(new char[sizeof(uint64_t*)]);
  const uint64_t* const address = words.data();
  std::memcpy(parameters.get(), &address, sizeof(address));
  const auto number = static_cast<uint32_t>(std::strtoul(threads, nullptr, 10));
  run_grid({&program.function(kernel), number, /*blocks=*/1, /*seed=*/1, parameters});
  for (const uint64_t each : words) std::cout << each << "\n";
}

}  // namespace
}  // namespace fastcomm::ptx

int main(int argc, char** argv) {
  using namespace fastcomm::ptx;
  try {
    const bool runs = argc > 3 && std::strstr(argv[2], ".ptx") == nullptr;
    if (runs) run(argv[1], argv[2], argv[3], argc - 4, argv + 4);
    if (!runs) decode_all(argc - 1, argv + 1);
  } catch (const Unknown& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
