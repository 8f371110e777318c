// Accesses to memory that threads share, and how they order each other: the part of the interpreter
// that ThreadSanitizer looks at. It does not know fences, and no kernel has one: the decoder names
// a fence as an instruction that is not understood.
#include "machine.h"

namespace fastcomm::ptx {
namespace {

/// Returns use(word), which points to an unsigned integer of so many bytes.
template <class Use>
uint64_t as_word(const void* at, unsigned bytes, const Use& use) {
  void* const word = const_cast<void*>(at);
  if (bytes == 1) return use(static_cast<uint8_t*>(word));
  if (bytes == 2) return use(static_cast<uint16_t*>(word));
  if (bytes == 4) return use(static_cast<uint32_t*>(word));
  return use(static_cast<uint64_t*>(word));
}

}  // namespace

uint64_t load(const char* from, unsigned bytes, Order order) {
  return as_word(from, bytes, [&](auto* word) -> uint64_t {
    if (order == Order::kWeak) return *word;
    return order == Order::kAcquire ? __atomic_load_n(word, __ATOMIC_ACQUIRE)
                                    : __atomic_load_n(word, __ATOMIC_RELAXED);
  });
}

void store(char* to, uint64_t given, unsigned bytes, Order order) {
  as_word(to, bytes, [&]<class T>(T* word) -> uint64_t {
    const auto value = static_cast<T>(given);
    if (order == Order::kWeak) return *word = value;
    if (order == Order::kRelease) return __atomic_store_n(word, value, __ATOMIC_RELEASE), 0;
    return __atomic_store_n(word, value, __ATOMIC_RELAXED), 0;
  });
}

uint64_t exchange(char* at, uint64_t given, unsigned bytes, Order order) {
  return as_word(at, bytes, [&]<class T>(T* word) -> uint64_t {
    const auto value = static_cast<T>(given);
    return order == Order::kRelaxed ? __atomic_exchange_n(word, value, __ATOMIC_RELAXED)
                                    : __atomic_exchange_n(word, value, __ATOMIC_ACQ_REL);
  });
}

}  // namespace fastcomm::ptx
