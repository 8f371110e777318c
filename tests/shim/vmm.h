// Memory of devices for other processes, by file descriptors or fabric handles: the functions of
// the CUDA driver for physical memory that is made, mapped and exported apart from each other
// (virtual memory management).
//
// As CUDA documents it: memory is made in multiples of a granularity, exported only if it was made
// for that, as a descriptor that travels over SCM_RIGHTS and keeps it alive; imported, also by the
// process itself, mapped whole at reserved addresses, and used by the devices that were granted
// access. It is gone when no process holds it or has it mapped. Memory from cudaMalloc has no such
// handle. A descriptor is of one memfd with the memory followed by its ledger (shim/ledger.h).
// Whoever imports is ordered after what the exporter's host had waited for when it exported. A
// fabric handle is 64 bytes, which keep nothing alive. Refused:
//
//   CUDA_ERROR_NOT_SUPPORTED    the switches below
//   CUDA_ERROR_INVALID_VALUE    no such handle or address, a size that is no multiple, a part of a
//                               handle's memory, a descriptor of something else, memory that was
//                               not made to be exported, access for a device that does not exist
//   CUDA_ERROR_OUT_OF_MEMORY    no room
//
// Only fixed properties: pinned memory of a device, one kind of handle, read and write access.
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

using CUresult = int;
using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
constexpr CUresult CUDA_SUCCESS = 0;
constexpr CUresult CUDA_ERROR_INVALID_VALUE = 1;
constexpr CUresult CUDA_ERROR_OUT_OF_MEMORY = 2;
constexpr CUresult CUDA_ERROR_NOT_FOUND = 500;
constexpr CUresult CUDA_ERROR_NOT_SUPPORTED = 801;
enum CUmemAllocationType { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum CUmemAllocationHandleType {
  CU_MEM_HANDLE_TYPE_NONE = 0,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
  CU_MEM_HANDLE_TYPE_FABRIC = 8
};
enum CUmemLocationType { CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum CUmemAccess_flags {
  CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3
};
enum CUmemAllocationGranularity_flags { CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0 };
struct CUmemLocation {
  CUmemLocationType type;
  int id;
};
struct CUmemAllocationProp {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
};
struct CUmemFabricHandle {
  unsigned char data[64];
};
struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};

namespace fastcomm::shim {

/// Host threads alone call.
class Vmm {
 public:
  static constexpr size_t kGranularity = size_t{1} << 21;

  static Vmm& get() {
    static Vmm& vmm = *new Vmm;
    return vmm;
  }

  /// Before anything is made or imported.
  std::atomic<bool> supported{true};
  /// Descriptors, and fabric handles: those need a service that few machines have.
  std::atomic<bool> descriptors{true};
  std::atomic<bool> fabric{false};

  /// The function of this name refuses, after that many calls that pass: to test what is half done.
  const char* refusing = "";
  int passes = 0;
  bool refuses(const char* function) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::strcmp(function, refusing) == 0 && passes-- <= 0;
  }
  /// Whether nothing is left of what was made, imported, reserved or mapped.
  bool is_empty() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return handles_.empty() && reserved_.empty() && mapped_.empty();
  }

  CUresult create(CUmemGenericAllocationHandle* handle, size_t bytes, int device,
                  CUmemAllocationHandleType type) {
    if (!supports(type)) return CUDA_ERROR_NOT_SUPPORTED;
    if (bytes == 0 || bytes % kGranularity != 0 || !is_device(device)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto made = std::make_shared<Physical>();
    made->file = memfd_create("device-memory-handle", MFD_CLOEXEC);
    made->type = type;
    if (made->file < 0 || ftruncate(made->file, static_cast<off_t>(bytes + kLedgerBytes)) != 0) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->mapping = std::make_unique<LedgerMapping>(reopened(made->file), bytes);
    if (made->mapping->ledger() == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    Card& card = made->mapping->ledger()->card;
    LedgerFile::clear(*made->mapping->ledger());
    card.pid = getpid();
    card.process = process_number();
    card.device = device;
    card.bytes = bytes;
    card.generation.store(kMade, std::memory_order_release);
    return keep(handle, std::move(made));
  }

  CUresult import(CUmemGenericAllocationHandle* handle, int file) {
    return import_as(handle, file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  }
  CUresult import(CUmemGenericAllocationHandle* handle, const CUmemFabricHandle& fabric_handle) {
    FabricText text;
    std::memcpy(&text, &fabric_handle, sizeof(text));
    const int file = text.magic == kMade ? open_file_of(text.pid, text.file) : -1;
    if (file < 0) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = import_as(handle, file, CU_MEM_HANDLE_TYPE_FABRIC);
    close(file);
    return result;
  }
  CUresult import_as(CUmemGenericAllocationHandle* handle, int file,
                     CUmemAllocationHandleType type) {
    if (!supports(type)) return CUDA_ERROR_NOT_SUPPORTED;
    struct stat status = {};
    if (fstat(file, &status) != 0 || status.st_size <= static_cast<off_t>(kLedgerBytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const uint64_t bytes = static_cast<uint64_t>(status.st_size) - kLedgerBytes;
    auto made = std::make_shared<Physical>();
    made->file = reopened(file);
    made->type = type;
    made->mapping = std::make_unique<LedgerMapping>(reopened(file), bytes);
    Ledger* const ledger = made->mapping->ledger();
    if (made->file < 0 || ledger == nullptr || bytes % kGranularity != 0 ||
        ledger->card.generation.load(std::memory_order_acquire) != kMade ||
        ledger->card.bytes != bytes || !is_device(ledger->card.device)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const LedgerLock locked(*ledger);
    WideHost::get().saw(ledger->card.exported);
    return keep(handle, std::move(made));
  }

  CUresult export_to(int* file, CUmemGenericAllocationHandle handle) {
    int there = -1;
    const CUresult result = told(&there, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS) return result;
    *file = fcntl(there, F_DUPFD_CLOEXEC, 0);
    return *file >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult export_to(CUmemFabricHandle* to, CUmemGenericAllocationHandle handle) {
    FabricText text{kMade, getpid(), -1};
    const CUresult result = told(&text.file, handle, CU_MEM_HANDLE_TYPE_FABRIC);
    std::memset(to, 0, sizeof(*to));
    if (result == CUDA_SUCCESS) std::memcpy(to, &text, sizeof(text));
    return result;
  }

  CUresult release(CUmemGenericAllocationHandle handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto there = handles_.find(handle);
    if (there == handles_.end()) return CUDA_ERROR_INVALID_VALUE;
    if (--there->second.times == 0) handles_.erase(there);  // mappings keep the memory
    return CUDA_SUCCESS;
  }

  /// The handle of what is mapped there, which then takes one more release.
  CUresult retain(CUmemGenericAllocationHandle* handle, const void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto* const at = static_cast<const char*>(address);
    for (const auto& [begin, mapped] : mapped_) {
      if (at < begin || at >= begin + mapped.memory->bytes()) continue;
      Handle& there = handles_[mapped.handle];
      there.memory = mapped.memory;
      ++there.times;
      *handle = mapped.handle;
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
  }

  CUresult reserve(CUdeviceptr* address, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!supported) return CUDA_ERROR_NOT_SUPPORTED;
    if (bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
    void* const made = Runtime::get().memory_source().reserve(bytes);
    if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    reserved_[static_cast<char*>(made)] = bytes;
    *address = reinterpret_cast<CUdeviceptr>(made);
    return CUDA_SUCCESS;
  }
  CUresult free_addresses(char* address, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto there = reserved_.find(address);
    const auto mapped = mapped_.lower_bound(address);
    if (there == reserved_.end() || there->second != bytes ||
        (mapped != mapped_.end() && mapped->first < address + bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Runtime::get().memory_source().release(address, bytes);
    reserved_.erase(there);
    return CUDA_SUCCESS;
  }

  CUresult map(char* address, size_t bytes, CUmemGenericAllocationHandle handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto there = handles_.find(handle);
    if (there == handles_.end() || there->second.memory->bytes() != bytes ||
        !is_free(address, bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::shared_ptr<Physical>& memory = there->second.memory;
    if (!Runtime::get().memory_source().map(address, memory->file, 0, bytes)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    auto* const shared = new SharedMemory(*memory->mapping->ledger(),
                                          Runtime::get().memory_source().on_host(address));
    SharedMemories::add(shared);
    Runtime::get().adopt(address, bytes, memory->mapping->ledger()->card.device,
                         /*by_grant=*/true);
    mapped_[address] = Mapped{handle, memory, shared};
    return CUDA_SUCCESS;
  }
  CUresult unmap(char* address, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto there = mapped_.find(address);
    if (there == mapped_.end() || there->second.memory->bytes() != bytes) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    there->second.shared->must_be_idle("unmaps");
    SharedMemories::remove(there->second.shared);
    const bool idle = Order::get().settled(address, bytes);
    Runtime::get().forget(address);
    if (idle) {
      Runtime::get().memory_source().unmap(address, bytes);
      mapped_.erase(there);
    }
    return CUDA_SUCCESS;
  }
  CUresult grant(char* address, size_t bytes, int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto there = mapped_.find(address);
    if (there == mapped_.end() || there->second.memory->bytes() != bytes || !is_device(device)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int owner = there->second.memory->mapping->ledger()->card.device;
    if (device != owner && !Runtime::get().can_access(device, owner)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Runtime::get().grant(address, device);
    return CUDA_SUCCESS;
  }

 private:
  static constexpr uint64_t kMade = 0x6d6d76;  // no other program's file starts like this by chance

  struct Physical {
    ~Physical() {
      if (file >= 0) close(file);
    }
    uint64_t bytes() const { return mapping->ledger()->card.bytes; }

    int file = -1;
    CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_NONE;  // for which it was made
    std::unique_ptr<LedgerMapping> mapping;
  };
  struct FabricText {
    uint64_t magic;
    pid_t pid;
    int file;  // of that process, which has it open as long as it has the memory
  };
  static_assert(sizeof(FabricText) <= sizeof(CUmemFabricHandle));
  struct Handle {
    std::shared_ptr<Physical> memory;
    int times = 0;
  };
  struct Mapped {
    CUmemGenericAllocationHandle handle = 0;
    std::shared_ptr<Physical> memory;
    SharedMemory* shared = nullptr;
  };

  bool supports(CUmemAllocationHandleType type) const {
    if (!supported || !Runtime::get().configured()) return false;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) return fabric;
    return type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || descriptors;
  }
  /// The file of what is exported, after telling it what its host has waited for.
  CUresult told(int* file, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!supported) return CUDA_ERROR_NOT_SUPPORTED;
    const auto there = handles_.find(handle);
    if (there == handles_.end() || there->second.memory->type != type) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    tell_exporter(*there->second.memory->mapping->ledger());
    *file = there->second.memory->file;
    return CUDA_SUCCESS;
  }

  static int reopened(int file) { return open_file_of(getpid(), file); }
  static bool is_device(int device) { return device >= 0 && device < Runtime::get().devices(); }

  CUresult keep(CUmemGenericAllocationHandle* handle, std::shared_ptr<Physical> made) {
    const std::lock_guard<std::mutex> lock(mutex_);
    *handle = ++last_;
    handles_[last_] = Handle{std::move(made), 1};
    return CUDA_SUCCESS;
  }
  /// Whether these are reserved addresses with nothing mapped.
  bool is_free(const char* address, size_t bytes) const {
    for (const auto& [begin, length] : reserved_) {
      if (address < begin || address + bytes > begin + length) continue;
      for (const auto& [at, mapped] : mapped_) {
        if (at < address + bytes && address < at + mapped.memory->bytes()) return false;
      }
      return (address - begin) % static_cast<long>(kGranularity) == 0;
    }
    return false;
  }

  std::mutex mutex_;
  CUmemGenericAllocationHandle last_ = 0;
  std::map<CUmemGenericAllocationHandle, Handle> handles_;
  std::map<char*, size_t> reserved_;
  std::map<char*, Mapped> mapped_;
};

}  // namespace fastcomm::shim

#include "shim/vmm_api.h"  // IWYU pragma: export
