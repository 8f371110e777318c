#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "transport/ipc/virtual_memory.h"

#include <algorithm>
#include <utility>

#include "core/device_guard.h"
#include "transport/bootstrap.h"

namespace fastcomm {
namespace {

// Short: every descriptor has been sent before any is taken.
constexpr Milliseconds kPatience{10'000};

/// Memory of the driver, held while this object lives; it lives on in its mappings.
class Physical {
 public:
  Physical() = default;
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  ~Physical() {
    if (handle != 0) driver_memory().cuMemRelease(handle);
  }
  CUmemGenericAllocationHandle handle = 0;
};

/// The message that comes with a descriptor.
struct Note {
  uint64_t nonce;  // of the listener
  int32_t rank;
};

}  // namespace

struct VirtualMemory::Ticket {
  uint64_t bytes;
  uint64_t nonce;
  char name[48];  // of the listener
  CUmemFabricHandle fabric;
};

CUmemAllocationProp VirtualMemory::properties() const {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = type_;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device()};
  return prop;
}

VirtualMemory::Mapped VirtualMemory::mapped(CUmemGenericAllocationHandle memory, uint64_t bytes,
                                            const std::string& what) const {
  const DriverMemory& driver = driver_memory();
  Mapped made{0, bytes};
  bool has_memory = false;
  try {
    FC_DRIVER(driver.cuMemAddressReserve(&made.at, bytes, 0, 0, 0), what);
    FC_DRIVER(driver.cuMemMap(made.at, bytes, 0, memory, 0), what);
    has_memory = true;
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device()};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    FC_DRIVER(driver.cuMemSetAccess(made.at, bytes, &access, 1), what);
  } catch (const Error&) {
    if (has_memory) driver.cuMemUnmap(made.at, bytes);
    if (made.at != 0) driver.cuMemAddressFree(made.at, bytes);
    throw;
  }
  return made;
}

void VirtualMemory::grant_others() {
  int devices = 0;
  FC_CUDA(cudaGetDeviceCount(&devices), "a window");
  for (int other = 0; other < devices; ++other) {
    int reaches = 0;
    if (other == device()) continue;
    if (cudaDeviceCanAccessPeer(&reaches, other, device()) != cudaSuccess || reaches == 0) continue;
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, other};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    // If this is refused, copies to that device go through the host, as without such memory.
    static_cast<void>(driver_memory().cuMemSetAccess(own_.at, own_.bytes, &access, 1));
  }
}

void VirtualMemory::unmap(const Mapped& mapped) {
  if (mapped.at == 0) return;
  const DriverMemory& driver = driver_memory();
  FC_DRIVER(driver.cuMemUnmap(mapped.at, mapped.bytes), "a window");
  FC_DRIVER(driver.cuMemAddressFree(mapped.at, mapped.bytes), "a window");
}

char* VirtualMemory::make(uint64_t bytes) {
  const DriverMemory& driver = driver_memory();
  const DeviceGuard guard(device());
  const CUmemAllocationProp prop = properties();
  size_t step = 0;
  FC_DRIVER(driver.cuMemGetAllocationGranularity(&step, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            "a window");
  bytes = (bytes + step - 1) / step * step;
  Physical memory;
  FC_DRIVER(driver.cuMemCreate(&memory.handle, bytes, &prop, 0), "a window of ", bytes, " bytes");
  own_ = mapped(memory.handle, bytes, "a window");
  grant_others();
  auto* const begin = reinterpret_cast<char*>(own_.at);
  enqueue_and_wait("a window's flags",
                   [&](cudaStream_t stream) { return cudaMemsetAsync(begin, 0, bytes, stream); });
  void* out = &fabric_;
  int file = -1;
  if (gives()) out = &file;
  FC_DRIVER(driver.cuMemExportToShareableHandle(out, memory.handle, type_, 0),
            "a window for other processes");
  exported_ = Fd(file);
  return begin;
}

std::string VirtualMemory::handle() {
  Ticket ticket{};
  ticket.bytes = own_.bytes;
  ticket.fabric = fabric_;
  if (gives()) {
    listener_ = std::make_unique<Listener>();
    nonce_ = random_bits();
    ticket.nonce = nonce_;
    const std::string& name = listener_->name();
    FC_CHECK(name.size() < sizeof(ticket.name), "a socket's name is too long");
    std::copy(name.begin(), name.end(), ticket.name);
  }
  return {reinterpret_cast<const char*>(&ticket), sizeof(ticket)};
}

VirtualMemory::Ticket VirtualMemory::read(int peer, const std::string& handle) {
  auto ticket = read_handle<Ticket>(peer, handle);
  ticket.name[sizeof(ticket.name) - 1] = '\0';
  return ticket;
}

void VirtualMemory::give(int rank, const std::vector<std::string>& handles) {
  for (int peer = 0; peer < static_cast<int>(handles.size()); ++peer) {
    if (peer == rank || handles[peer].empty()) continue;
    const Ticket ticket = read(peer, handles[peer]);
    const Note note{ticket.nonce, rank};
    const int file = exported_.get();
    send_parcel(connect_to(ticket.name).get(), &note, sizeof(note), &file, 1);
    ++awaited_;
  }
  exported_ = Fd();
}

Fd VirtualMemory::descriptor_of(int peer) {
  const Deadline deadline = Clock::now() + kPatience;
  while (came_.count(peer) == 0) {
    auto [rank, file] = accept_one(*listener_, deadline, [&](int socket) {
      check_user(socket);
      Note note{};
      Parcel parcel = receive_parcel(socket, &note, sizeof(note), 1, 1);
      if (parcel.lost) {
        throw Error(ErrorCode::kSystem, "this process may open no more files (ulimit -n)");
      }
      if (!parcel.whole || note.nonce != nonce_) throw Error(ErrorCode::kSystem, "a stranger");
      return std::pair(note.rank, std::move(parcel.files[0]));
    });
    came_[rank] = std::move(file);
  }
  return std::move(came_.extract(peer).mapped());
}

char* VirtualMemory::map(int peer, const std::string& handle) {
  const DriverMemory& driver = driver_memory();
  Ticket ticket = read(peer, handle);
  const DeviceGuard guard(device());
  const std::string what = concat("the window of rank ", peer);
  Fd file;
  void* from = &ticket.fabric;
  if (gives()) {
    file = descriptor_of(peer);
    if (--awaited_ == 0) listener_.reset();
    from = reinterpret_cast<void*>(static_cast<intptr_t>(file.get()));
  }
  Physical memory;
  FC_DRIVER(driver.cuMemImportFromShareableHandle(&memory.handle, from, type_), what);
  peers_[peer] = mapped(memory.handle, ticket.bytes, what);
  return reinterpret_cast<char*>(peers_[peer].at);
}

void VirtualMemory::unmap(int peer) {
  const DeviceGuard guard(device());
  const Mapped there = peers_.at(peer);
  peers_.erase(peer);
  unmap(there);
}

void VirtualMemory::free() {
  const DeviceGuard guard(device());
  unmap(std::exchange(own_, {}));
}

}  // namespace fastcomm
#endif
