#include "c10d/stock_engine.h"

#include <algorithm>
#include <system_error>
#include <thread>

namespace fastcomm {
namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& torch_error) {
    return torch_error.what_without_backtrace();
  } catch (const std::exception& other) {
    return other.what();
  } catch (...) {
    return "unknown error";
  }
}

}  // namespace

EngineError::EngineError(const std::exception_ptr& error)
    : text(text_of(error)),
      code(text.find("imed out") != std::string::npos ? ErrorCode::kTimeout : ErrorCode::kSystem) {}

WaitSlices& WaitSlices::instance() {
  static auto* shared = new WaitSlices;  // its thread may outlive the static objects
  return *shared;
}

bool WaitSlices::wait(::c10d::Work& engine) {
  struct Entry {
    explicit Entry(::c10d::Work& work) : engine(work) { instance().add(engine); }
    ~Entry() { instance().remove(engine); }
    ::c10d::Work& engine;
  };
  const Entry entry(engine);
  return engine.wait();
}

void WaitSlices::add(::c10d::Work& engine) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back({&engine, Clock::now()});
  if (asleep_) added_.notify_one();
  if (running_) return;
  try {
    std::thread([this] { run(); }).detach();
    running_ = true;
  } catch (const std::system_error&) {  // no thread to be had
  }
}

void WaitSlices::remove(::c10d::Work& engine) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const Waiting& each) { return each.engine == &engine; });
  waiting_.erase(found);
}

void WaitSlices::run() {
  constexpr int kIdleSlices = 100;  // then it sleeps: it is not to be woken for every wait
  int idle = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    idle = waiting_.empty() ? idle + 1 : 0;
    if (idle > kIdleSlices) {
      asleep_ = true;
      added_.wait(lock, [&] { return !waiting_.empty(); });
      asleep_ = false;
      idle = 0;  // more of them may follow
    }
    lock.unlock();
    std::this_thread::sleep_for(kSlice);
    lock.lock();
    const auto now = Clock::now();
    for (Waiting& each : waiting_) {
      if (now - each.since < kSlice) continue;
      each.engine->abort();  // under the lock: it is there until remove()
      each.since = now;
    }
  }
}

}  // namespace fastcomm
