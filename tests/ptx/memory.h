// The allocations of this process that kernels may use.
//
// Looked up by the interpreter at every access, under a lock that ThreadSanitizer does not see: one
// that it saw would order threads which nothing on a device orders.
#pragma once

#include <cstdint>

#include "program.h"

namespace fastcomm::ptx {

/// What devices use as bytes [begin, end); the host finds it `shift` further on.
struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t shift = 0;
};

void add_range(const void* begin, uint64_t bytes, const void* on_host);
void remove_range(const void* begin);
/// The range that holds all of these bytes, nullptr if there is none.
const Range* find_range(uint64_t address, uint64_t bytes);

/// Where ThreadSanitizer looks on, these are compiled with it (access.cpp); all else of the
/// interpreter is not, as registers are a thread's own. An order is that of the whole system:
/// kRelaxed for one of less scope, kWeak for data.
uint64_t load(const char* from, unsigned bytes, Order order);
void store(char* to, uint64_t value, unsigned bytes, Order order);
enum class Change { kExchange, kCompareExchange, kAdd };
uint64_t change(char* at, Change kind, uint64_t value, uint64_t wanted, unsigned bytes,
                Order order);

}  // namespace fastcomm::ptx
