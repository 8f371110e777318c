// Memory of devices for other processes: the CUDA runtime's functions for handles of memory, over
// files that processes map (shim/arena.h, shim/ledger.h).
//
// As CUDA documents it: a handle is of a whole allocation of cudaMalloc, for other processes alone;
// asked for again it is the same, and after a cudaFree never that of new memory at the same
// address. A device that opens a handle twice has one mapping, which takes as many closes to undo.
// Opening enables access to the exporter's device for the opener, where a link permits it. Freeing
// what is still mapped elsewhere is undefined there: here it is a hazard, and so is any later use
// of that mapping. Whoever opens a handle is ordered after what the exporter's host had waited for
// when it got the handle; to export what a stream still uses is a hazard. What is refused:
//
//   export   cudaErrorNotSupported       the switch below, no devices, or memory that is no file's
//            cudaErrorInvalidValue       not the base of an allocation of cudaMalloc
//            cudaErrorMemoryAllocation   more exports than there are ledgers
//   open     cudaErrorNotSupported       the switches
//            cudaErrorInvalidValue       flags that are not cudaIpcMemLazyEnablePeerAccess
//            cudaErrorInvalidResourceHandle   no handle, or its memory has been freed
//            cudaErrorDeviceUninitialized     a handle of this process
//            cudaErrorPeerAccessUnsupported   no access to the exporter's device
//            cudaErrorMapBufferObjectFailed   the exporter has ended, or there is no room
//   close    cudaErrorInvalidValue       not open, or no longer
#pragma once

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "shim/ledger.h"
#include "shim/runtime.h"
#include "shim/shared_memory.h"

constexpr int CUDA_IPC_HANDLE_SIZE = 64;
constexpr unsigned cudaIpcMemLazyEnablePeerAccess = 1;
struct cudaIpcMemHandle_t {
  char reserved[CUDA_IPC_HANDLE_SIZE];
};

namespace fastcomm::shim {

/// The contents of a handle; all the rest is on the ledger's card.
struct HandleText {
  static constexpr uint32_t kMagic = 0x65686366;  // "fche"
  uint32_t magic;
  uint32_t process;
  pid_t pid;
  int ledgers;  // file of the exporter's
  uint32_t slot;
  uint64_t generation;
};
static_assert(sizeof(HandleText) <= CUDA_IPC_HANDLE_SIZE);

/// Host threads alone call.
class Ipc {
 public:
  static Ipc& get() {
    static Ipc& ipc = *new Ipc;
    return ipc;
  }

  /// Many machines lack it, containers above all. Set before anything is exported or opened.
  std::atomic<bool> supported{true};
  std::atomic<bool> opens{true};  // what others export

  cudaError_t handle_of(cudaIpcMemHandle_t* handle, void* memory) {
    auto& runtime = Runtime::get();
    if (!supported || !runtime.configured()) return cudaErrorNotSupported;
    const auto found = runtime.find(memory);
    if (!found || found->base != memory || found->device == -1 || found->mapped) {
      return cudaErrorInvalidValue;
    }
    const Backing backing = runtime.memory_source().backing(memory);
    if (backing.file < 0) return cudaErrorNotSupported;
    const std::lock_guard<std::mutex> lock(mutex_);
    Export& there = exports_[memory];
    if (there.mapping == nullptr) {
      if (!make_export(there, *found, backing)) {
        exports_.erase(memory);
        return cudaErrorMemoryAllocation;
      }
      runtime.before_free(memory, [this, memory, bytes = found->bytes] { freed(memory, bytes); });
    }
    if (!Order::get().settled(memory, found->bytes)) {
      Order::get().add_hazards({concat("the host exports ", found->bytes, " bytes at ", memory,
                                       ", and has not waited for what uses them")});
    }
    tell_exporter(*there.mapping->ledger());
    std::memset(handle, 0, sizeof(*handle));
    std::memcpy(handle, &there.text, sizeof(there.text));
    return cudaSuccess;
  }

  cudaError_t open(void** memory, const cudaIpcMemHandle_t& handle, unsigned flags) {
    auto& runtime = Runtime::get();
    if (!supported || !opens || !runtime.configured()) return cudaErrorNotSupported;
    if (flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
    HandleText text;
    std::memcpy(&text, &handle, sizeof(text));
    if (text.magic != HandleText::kMagic || text.slot >= LedgerFile::kMost) {
      return cudaErrorInvalidResourceHandle;
    }
    if (text.process == process_number()) return cudaErrorDeviceUninitialized;
    const Key key{{text.process, text.generation}, current_device};
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto open = imports_.find(key);
    if (open != imports_.end()) {
      ++open->second.times;
      *memory = open->second.memory;
      return cudaSuccess;
    }
    Import made;
    const cudaError_t result = make_import(made, text);
    if (result != cudaSuccess) return result;
    *memory = made.memory;
    imports_.emplace(key, std::move(made));
    return cudaSuccess;
  }

  cudaError_t close(void* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto open = imports_.begin(); open != imports_.end(); ++open) {
      if (open->second.memory != memory) continue;
      if (--open->second.times > 0) return cudaSuccess;
      auto& runtime = Runtime::get();
      open->second.shared->must_be_idle("unmaps");
      SharedMemories::remove(open->second.shared);
      // What is still under way there is a hazard, and continues: memory and ledger stay.
      const bool idle = Order::get().settled(memory, open->second.bytes);
      runtime.forget(memory);
      const size_t within = reinterpret_cast<uintptr_t>(memory) % kPage;
      if (idle) {
        const size_t length = pages(within + open->second.bytes);
        runtime.memory_source().unmap(open->second.memory - within, length);
        runtime.memory_source().release(open->second.memory - within, length);
      } else {
        LedgerMapping::keep(std::move(open->second.mapping));
      }
      imports_.erase(open);
      return cudaSuccess;
    }
    return cudaErrorInvalidValue;
  }

 private:
  struct Export {
    HandleText text{};
    std::unique_ptr<LedgerMapping> mapping;
    SharedMemory* shared = nullptr;  // never freed: a stream's thread may be about to look
  };
  struct Import {
    char* memory = nullptr;
    size_t bytes = 0;
    int times = 1;
    std::unique_ptr<LedgerMapping> mapping;
    SharedMemory* shared = nullptr;
  };
  static constexpr size_t kPage = 4096;
  using Key = std::pair<std::pair<uint32_t, uint64_t>, int>;  // process, generation; opener

  bool make_export(Export& there, const Runtime::Allocation& memory, const Backing& backing) {
    const uint32_t slot = ledgers_.file() < 0 ? LedgerFile::kMost : ledgers_.take();
    if (slot == LedgerFile::kMost) return false;
    auto mapping = std::make_unique<LedgerMapping>(open_file_of(getpid(), ledgers_.file()),
                                                   LedgerFile::offset_of(slot));
    Ledger* const ledger = mapping->ledger();
    if (ledger == nullptr) return false;
    LedgerFile::clear(*ledger);
    const uint64_t generation = ledgers_.next_generation();
    Card& card = ledger->card;
    card.pid = getpid();
    card.process = process_number();
    card.file = backing.file;
    card.device = memory.device;
    card.offset = backing.offset;
    card.bytes = memory.bytes;
    card.freed = false;
    card.generation.store(generation, std::memory_order_release);
    there.text = {HandleText::kMagic, card.process, card.pid, ledgers_.file(), slot, generation};
    there.mapping = std::move(mapping);
    there.shared = new SharedMemory(*ledger, Runtime::get().on_host(memory.base));
    SharedMemories::add(there.shared);
    return true;
  }

  /// Memory freed while another process has it keeps its ledger, which tells that process; and
  /// while a stream of this one uses it, the ledger stays where it is.
  void freed(void* memory, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto there = exports_.find(memory);
    Ledger& ledger = *there->second.mapping->ledger();
    const bool idle = Order::get().settled(memory, bytes);
    there->second.shared->must_be_idle("frees");
    SharedMemories::remove(there->second.shared);
    {
      const LedgerLock locked(ledger);
      ledger.card.freed = true;
    }
    if (there->second.mapping->mapped_elsewhere()) {
      Order::get().add_hazards({concat("the host frees ", ledger.card.bytes, " bytes at ", memory,
                                       ", which another process has still mapped")});
    } else if (idle) {
      ledger.card.generation.store(0, std::memory_order_release);
      ledgers_.give_back(there->second.text.slot);
    }
    if (!idle) LedgerMapping::keep(std::move(there->second.mapping));
    exports_.erase(there);
  }

  static size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

  static cudaError_t make_import(Import& made, const HandleText& text) {
    const int ledgers = open_file_of(text.pid, text.ledgers);
    if (ledgers < 0) return cudaErrorMapBufferObjectFailed;
    made.mapping = std::make_unique<LedgerMapping>(ledgers, LedgerFile::offset_of(text.slot));
    Ledger* const ledger = made.mapping->ledger();
    // Counted first: the owner frees it earlier and says so on the card, or sees it counted.
    if (ledger == nullptr || !made.mapping->count()) return cudaErrorMapBufferObjectFailed;
    const Card& card = ledger->card;
    if (card.generation.load(std::memory_order_acquire) != text.generation ||
        card.process != text.process) {
      return cudaErrorInvalidResourceHandle;
    }
    const LedgerLock locked(*ledger);
    if (card.freed) return cudaErrorInvalidResourceHandle;
    auto& runtime = Runtime::get();
    const int device = card.device;
    if (device >= runtime.devices()) return cudaErrorInvalidDevice;
    if (device != current_device && !runtime.can_access(current_device, device)) {
      return cudaErrorPeerAccessUnsupported;
    }
    const int file = open_file_of(card.pid, card.file);
    if (file < 0) return cudaErrorMapBufferObjectFailed;
    const uint64_t within = card.offset % kPage;
    const size_t length = pages(within + card.bytes);
    const MemorySource& source = runtime.memory_source();
    void* const addresses = source.reserve(length);
    const bool mapped =
        addresses != nullptr && source.map(addresses, file, card.offset - within, length);
    ::close(file);
    if (!mapped) return cudaErrorMapBufferObjectFailed;
    made.memory = static_cast<char*>(addresses) + within;
    made.bytes = card.bytes;
    runtime.adopt(made.memory, made.bytes, device, /*by_grant=*/false);
    runtime.grant(made.memory, current_device);
    WideHost::get().saw(card.exported);
    made.shared = new SharedMemory(*ledger, runtime.on_host(made.memory));
    SharedMemories::add(made.shared);
    return cudaSuccess;
  }

  std::mutex mutex_;
  LedgerFile ledgers_;
  std::map<void*, Export> exports_;
  std::map<Key, Import> imports_;
};

}  // namespace fastcomm::shim

FC_API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  const cudaError_t result = fastcomm::shim::Ipc::get().handle_of(handle, memory);
  return result == cudaSuccess ? result : fastcomm::shim::fail(result);
}
FC_API cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned flags) {
  if (fastcomm::shim::unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
  fastcomm::shim::need_context();
  const cudaError_t result = fastcomm::shim::Ipc::get().open(memory, handle, flags);
  return result == cudaSuccess ? result : fastcomm::shim::fail(result);
}
FC_API cudaError_t cudaIpcCloseMemHandle(void* memory) {
  if (fastcomm::shim::unsafe() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
  fastcomm::shim::need_context();
  const cudaError_t result = fastcomm::shim::Ipc::get().close(memory);
  return result == cudaSuccess ? result : fastcomm::shim::fail(result);
}
