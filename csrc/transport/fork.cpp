#include "transport/fork.h"

#include <pthread.h>

#include <atomic>

namespace fastcomm {
namespace {

std::atomic<bool> g_forked{false};

}  // namespace

void watch_for_forks() {
  pthread_atfork(nullptr, nullptr, [] { g_forked.store(true, std::memory_order_relaxed); });
}

bool forked_from_endpoint() { return g_forked.load(std::memory_order_relaxed); }

}  // namespace fastcomm
