// Ranks as processes, made by fork() before anything native exists, and a store that they share.
#pragma once

#include <dirent.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "check.h"
#include "transport/bootstrap.h"

namespace fastcomm::testing {

/// A key-value store in memory that the processes of one test inherit.
class ForkedStore final : public Bootstrap {
 public:
  ForkedStore() {
    void* memory =
        mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    table_ = new (memory) Table;
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&table_->mutex, &shared);
  }
  ~ForkedStore() override { munmap(table_, sizeof(Table)); }

  void set(const std::string& key, const std::string& value) override {
    Lock lock(table_);
    Entry* entry = find(key);
    if (entry == nullptr) entry = &table_->entries[table_->used++];
    if (table_->used >= kEntries || key.size() >= sizeof(entry->key) ||
        value.size() > sizeof(entry->value)) {
      std::abort();
    }
    std::strcpy(entry->key, key.c_str());
    std::memcpy(entry->value, value.data(), value.size());
    entry->bytes = value.size();
  }
  bool has(const std::string& key) override {
    Lock lock(table_);
    return find(key) != nullptr;
  }
  std::string get(const std::string& key, Deadline deadline) override {
    for (;;) {
      {
        Lock lock(table_);
        if (Entry* entry = find(key)) return std::string(entry->value, entry->bytes);
      }
      if (Clock::now() > deadline) throw Error(ErrorCode::kTimeout, "no value for " + key);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  /// Forgets everything, for the next of many groups.
  void clear() {
    Lock lock(table_);
    table_->used = 0;
  }

 private:
  static constexpr int kEntries = 4000;
  struct Entry {
    char key[96];
    char value[512];
    size_t bytes;
  };
  struct Table {
    pthread_mutex_t mutex;
    int used;
    Entry entries[kEntries];
  };
  struct Lock {
    explicit Lock(Table* t) : table(t) { pthread_mutex_lock(&table->mutex); }
    ~Lock() { pthread_mutex_unlock(&table->mutex); }
    Table* table;
  };
  Entry* find(const std::string& key) {
    for (int i = 0; i < table_->used; ++i) {
      if (key == table_->entries[i].key) return &table_->entries[i];
    }
    return nullptr;
  }
  Table* table_;
};

/// Starts `body(rank)` in one process per rank; a process fails by EXPECT or an exception.
template <class Body>
std::vector<pid_t> start_processes(int size, const Body& body) {
  std::fflush(stdout);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < size; ++rank) {
    pids.push_back(fork());
    if (pids.back() != 0) continue;
    failures = 0;
    try {
      body(rank);
    } catch (const std::exception& error) {
      EXPECT(false, "rank ", rank, ": ", error.what());
    }
    std::fflush(stdout);
    // exit(), so that a leak checker runs.
    std::exit(failures == 0 ? 0 : 1);
  }
  return pids;
}

/// Waits until all have ended as `is_right(rank, status)` says.
template <class IsRight>
void await_processes(const std::vector<pid_t>& pids, const IsRight& is_right) {
  for (int rank = 0; rank < static_cast<int>(pids.size()); ++rank) {
    int status = 0;
    waitpid(pids[rank], &status, 0);
    EXPECT(is_right(rank, status), "rank ", rank, " ended with status ", status);
  }
}

inline bool ended_well(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
inline bool ended_by(int status, int signal) {
  return WIFSIGNALED(status) && WTERMSIG(status) == signal;
}

/// Both, where some ranks are to end by a signal.
template <class Body>
void run_processes(int size, const Body& body, const std::map<int, int>& expected_signal = {}) {
  await_processes(start_processes(size, body), [&](int rank, int status) {
    const auto wanted = expected_signal.find(rank);
    return wanted == expected_signal.end() ? ended_well(status) : ended_by(status, wanted->second);
  });
}

/// Entries of a folder of /proc/self or of /dev/shm.
inline int count_entries(const char* folder, const char* prefix = "") {
  int count = 0;
  DIR* directory = opendir(folder);
  while (const dirent* entry = readdir(directory)) {
    const std::string name = entry->d_name;
    if (name != "." && name != ".." && name.rfind(prefix, 0) == 0) ++count;
  }
  closedir(directory);
  return count - (std::string(folder) == "/proc/self/fd" ? 1 : 0);  // the folder's own
}

/// Kilobytes of a field of /proc/self/status.
inline long status_kb(const std::string& field) {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind(field + ":", 0) == 0) return std::stol(line.substr(field.size() + 1));
  }
  return -1;
}

}  // namespace fastcomm::testing
