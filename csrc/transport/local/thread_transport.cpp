#include "transport/local/thread_transport.h"

#include <cstring>
#include <new>
#include <string>

#include "core/error.h"
#include "transport/cores.h"

namespace fastcomm {
namespace {

struct Window {
  ControlBlock* control;
  Doorbell* doorbell;
  char* scratch;
};

/// Every rank's window, zeroed, in one aligned allocation.
class Windows {
 public:
  Windows(int size, size_t scratch_bytes)
      : bytes_(sizeof(ControlBlock) + sizeof(Doorbell) + scratch_bytes) {
    bytes_ = (bytes_ + 4095) / 4096 * 4096;
    memory_.reset(static_cast<char*>(::operator new(bytes_ * size, std::align_val_t(4096))));
    std::memset(memory_.get(), 0, bytes_ * size);
  }
  Window window(int rank) const {
    char* base = memory_.get() + rank * bytes_;
    return {reinterpret_cast<ControlBlock*>(base),
            reinterpret_cast<Doorbell*>(base + sizeof(ControlBlock)),
            base + sizeof(ControlBlock) + sizeof(Doorbell)};
  }

 private:
  struct Free {
    void operator()(char* memory) const { ::operator delete(memory, std::align_val_t(4096)); }
  };
  size_t bytes_;
  std::unique_ptr<char, Free> memory_;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(int rank, int size, std::shared_ptr<Windows> windows)
      : windows_(std::move(windows)) {
    view_.rank = rank;
    view_.size = size;
    for (int peer = 0; peer < size; ++peer) {
      const Window window = windows_->window(peer);
      control_blocks_[peer] = window.control;
      doorbells_[peer] = window.doorbell;
      view_.flags[peer] = &window.control->flag;
      view_.scratch[peer] = window.scratch;
    }
  }

  void reserve_scratch(size_t) override {}
  void reserve_part(size_t, size_t) override {}
  bool readable(int, size_t, size_t) const override { return true; }
  // One address space: an address names itself.
  uint64_t locate(const void* data, size_t) const override {
    return reinterpret_cast<uint64_t>(data);
  }
  char* reach(int, uint64_t where, size_t) const override {
    return reinterpret_cast<char*>(where);  // NOLINT(performance-no-int-to-ptr)
  }
  // owners of memory wait for its threads before they free it
  void quarantine(uint64_t, size_t) override {}
  bool lost(int) const override { return false; }
  std::function<bool()> peers_are_gone() const override {
    return [own = view_.rank, size = view_.size, windows = windows_] {
      for (int peer = 0; peer < size; ++peer) {
        const auto& left = windows->window(peer).control->left;
        if (peer != own && left.load(std::memory_order_acquire) == 0) return false;
      }
      return true;
    };
  }
  std::string describe(int rank) const override {
    return concat("rank ", number_of(rank), " (a thread)");
  }
  bool oversubscribed() const override { return size() > usable_cores(); }

 private:
  std::shared_ptr<Windows> windows_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_thread_transports(int size, size_t scratch_bytes) {
  FC_CHECK(size >= 1 && size <= kMaxRanks, "a group has 1 to ", kMaxRanks, " ranks, not ", size);
  auto windows = std::make_shared<Windows>(size, scratch_bytes);
  std::vector<std::unique_ptr<Transport>> groups;
  for (int rank = 0; rank < size; ++rank) {
    groups.push_back(std::make_unique<ThreadTransport>(rank, size, windows));
  }
  return groups;
}

}  // namespace fastcomm
