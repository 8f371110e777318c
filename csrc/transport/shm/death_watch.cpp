#include "transport/shm/death_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "core/thread_name.h"

namespace fastcomm {

struct DeathWatch::Shared {
  struct Watch {
    Fd pidfd;
    std::shared_ptr<std::atomic<bool>> dead;
  };
  Fd wake;
  std::function<void()> on_death;
  std::mutex mutex;
  bool stop = false;
  std::vector<Watch> watches;

  void signal() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake.get(), &one, sizeof(one));
  }
};

DeathWatch::DeathWatch(std::function<void()> on_death) : shared_(std::make_shared<Shared>()) {
  shared_->wake = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  FC_SYSCALL(shared_->wake.get() >= 0, "eventfd");
  shared_->on_death = std::move(on_death);
  // Detached: it holds its own reference to its state, and nobody has to wait for it.
  try {
    std::thread([shared = shared_] { run(shared); }).detach();
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kSystem, concat("a thread could not be started: ", error.what(),
                                           "; raise the limit of processes (ulimit -u)"));
  }
}

DeathWatch::~DeathWatch() {
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->stop = true;
    shared_->on_death = [] {};
  }
  shared_->signal();
}

void DeathWatch::watch(Fd pidfd, std::shared_ptr<std::atomic<bool>> dead) {
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->watches.push_back({std::move(pidfd), std::move(dead)});
  }
  shared_->signal();
}

void DeathWatch::prune() { shared_->signal(); }

void DeathWatch::run(const std::shared_ptr<Shared>& shared) {
  name_thread("fc-deathwatch");
  std::vector<pollfd> entries;
  for (;;) {
    entries.assign(1, pollfd{shared->wake.get(), POLLIN, 0});
    {
      std::lock_guard<std::mutex> lock(shared->mutex);
      if (shared->stop) return;
      auto& watches = shared->watches;
      watches.erase(std::remove_if(watches.begin(), watches.end(),
                                   [](const auto& watch) {
                                     return watch.dead->load() || watch.dead.use_count() == 1;
                                   }),
                    watches.end());
      for (const auto& watch : watches) entries.push_back({watch.pidfd.get(), POLLIN, 0});
    }
    // Only this thread closes descriptors, so those polled here keep their meaning.
    if (poll(entries.data(), entries.size(), -1) < 0) {
      // EINTR, or a limit of descriptors lowered below their number: try again, but not at once.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    uint64_t drained;
    [[maybe_unused]] const ssize_t got = read(shared->wake.get(), &drained, sizeof(drained));
    bool death = false;
    std::lock_guard<std::mutex> lock(shared->mutex);
    for (size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      for (auto& watch : shared->watches) {
        if (watch.pidfd.get() == entries[i].fd) watch.dead->store(true), death = true;
      }
    }
    if (death) shared->on_death();
  }
}

}  // namespace fastcomm
