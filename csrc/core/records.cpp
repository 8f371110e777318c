#include "core/records.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <mutex>

#include "core/control.h"
#include "core/env.h"
#include "core/process_stat.h"
#include "core/utf8.h"

namespace fastcomm {

using namespace records;

namespace {

struct Reading {
  uint64_t ticks, ns;
};

/// The counter and the time of one moment: the closest of some pairs.
Reading read_clock() {
  Reading best{};
  uint64_t least = ~uint64_t{0};
  for (int attempt = 0; attempt < 5; ++attempt) {
    const uint64_t before = ticks();
    const uint64_t now = monotonic_ns();
    const uint64_t taken = ticks() - before;
    if (taken < least) best = {before + taken / 2, now};
    least = std::min(least, taken);
  }
  return best;
}

int64_t ns_to_date() {
  timespec date{};
  clock_gettime(CLOCK_REALTIME, &date);
  return static_cast<int64_t>(date.tv_sec) * 1'000'000'000 + date.tv_nsec -
         static_cast<int64_t>(monotonic_ns());
}

void set_text(char* text, size_t bytes, const std::string& value) {
  const std::string_view fits = beginning_of(value, bytes - 1);
  std::memset(text, 0, bytes);
  std::memcpy(text, fits.data(), fits.size());
}

/// The thread's number in the system, asked for once.
uint64_t thread_number() noexcept {
  thread_local const auto number = static_cast<uint64_t>(syscall(SYS_gettid));
  return number;
}

/// Begins or ends that what stands under a stamp changes (Order, in the header).
void make_odd(Word& stamp) {
  stamp.store(stamp.load(std::memory_order_relaxed) | 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
}
void make_even(Word& stamp) {
  stamp.store(stamp.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

bool read_whole(int fd, File& file) {
  auto* const bytes = reinterpret_cast<char*>(&file);
  for (size_t at = 0; at < sizeof(File);) {
    const ssize_t part = pread(fd, bytes + at, sizeof(File) - at, static_cast<off_t>(at));
    if (part <= 0) return false;
    at += static_cast<size_t>(part);
  }
  return true;
}

/// Makes the stamp odd in a copy of an entry that was written meanwhile.
template <class Entry>
void mark_mixed(Entry& copy, const Entry& before, const Entry& after) {
  const uint64_t stamp = copy.stamp;
  if (before.stamp != stamp || after.stamp != stamp) copy.stamp = stamp | 1;
}

std::mutex g_groups;
File* g_file = nullptr;
std::string g_why_not;

/// A child of fork() has memory of its own in place of the file's: what it still calls on inherited
/// objects must not be taken for its parent's.
void part_from_parent() {
  constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  mmap(g_file, sizeof(File), PROT_READ | PROT_WRITE, kPrivate, -1, 0);
}

Records* opened(const std::string& names) {
  if (!environment().records) {
    g_why_not = "FASTCOMM_RECORDS=off";
    return nullptr;
  }
  rlimit most{};
  // Beyond it ftruncate() would end the process.
  if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < sizeof(File)) {
    g_why_not = "ulimit -f is lower than their 2 MiB";
    return nullptr;
  }
  const int fd = memfd_create("fastcomm-records", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ftruncate(fd, sizeof(File)) != 0) {
    g_why_not = errno_text(fd < 0 ? "memfd_create" : "ftruncate");
    if (fd >= 0) close(fd);
    return nullptr;
  }
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  void* const memory = mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    g_why_not = errno_text("mmap");
    close(fd);
    return nullptr;
  }
  // Backed now, and not page by page in the program's first calls.
  g_file = static_cast<File*>(memory);
  for (size_t at = 0; at < sizeof(g_file->calls); at += kPage) {
    reinterpret_cast<volatile char*>(g_file->calls)[at] = 0;
  }
  auto* const made = new Records(memory, fd, names);
  pthread_atfork(nullptr, nullptr, part_from_parent);
  return made;
}

}  // namespace

std::atomic<Records*> Records::instance_{nullptr};

Records* Records::open(const std::string& names) {
  static std::once_flag once;
  std::call_once(once, [&] { instance_.store(opened(names), std::memory_order_release); });
  return instance();
}

const std::string& Records::why_not() { return g_why_not; }

Records::Records(void* memory, int fd, const std::string& names)
    : file_(static_cast<File*>(memory)), fd_(fd) {
  Header& header = file_->header;
  header.version = kVersion;
  header.pid = getpid();
  header.start_time = ProcessStat::of("self").start_time;
  header.to_date = ns_to_date();
  set_text(file_->names, sizeof(file_->names), names);
  const Reading start = read_clock();
  first_ = start.ticks;
  header.first_ticks.store(start.ticks, std::memory_order_relaxed);
  header.first_ns.store(start.ns, std::memory_order_relaxed);
  // The rate, to some 1e-4 at first; later readings are further away, and make it exact.
  const timespec nap{0, 1'000'000};
  if (has_counter()) nanosleep(&nap, nullptr);
  const Reading next = has_counter() ? read_clock() : Reading{start.ticks + 1000, start.ns + 1000};
  header.latest_ticks.store(next.ticks, std::memory_order_relaxed);
  header.latest_ns.store(next.ns, std::memory_order_relaxed);
  second_ = (next.ticks - start.ticks) * 1'000'000'000 / (next.ns - start.ns);
  clock_due_.store(has_counter() ? second_ / 100 : ~uint64_t{0}, std::memory_order_relaxed);
  header.magic = kMagic;  // nobody knows of the file before it is whole
}

void Records::set_clock(uint64_t now) noexcept {
  Header& header = file_->header;
  uint64_t stamp = header.clock_before.load(std::memory_order_relaxed);
  if (stamp % 2 != 0) return;
  if (!header.clock_before.compare_exchange_strong(stamp, stamp + 1, std::memory_order_acquire,
                                                   std::memory_order_relaxed)) {
    return;
  }
  std::atomic_thread_fence(std::memory_order_release);  // Order, in the header
  const Reading reading = read_clock();
  header.latest_ticks.store(reading.ticks, std::memory_order_relaxed);
  header.latest_ns.store(reading.ns, std::memory_order_relaxed);
  // As far away as it is from the start, at most a second: more often at first.
  clock_due_.store(now + std::min(now, second_), std::memory_order_relaxed);
  header.clock_after.store(stamp + 2, std::memory_order_release);
  header.clock_before.store(stamp + 2, std::memory_order_release);
}

Records::Group Records::open_group(const AboutGroup& about) {
  const std::lock_guard<std::mutex> lock(g_groups);
  GroupPage* page = nullptr;  // a new one, or that which was closed first
  for (GroupPage& each : file_->groups) {
    if (each.stamp.load(std::memory_order_relaxed) == 0) {
      page = &each;
      break;
    }
    const uint64_t closed = each.closed.load(std::memory_order_relaxed);
    if (closed == 0) continue;
    if (page == nullptr || closed < page->closed.load(std::memory_order_relaxed)) page = &each;
  }
  if (page == nullptr) return {};
  make_odd(page->stamp);
  std::copy(about.token, about.token + 2, page->token);
  page->rank = about.rank;
  page->size = about.size;
  page->opened.store(now(), std::memory_order_relaxed);
  page->closed.store(0, std::memory_order_relaxed);
  page->members = static_cast<uint32_t>(std::min(about.members.size(), kMembers));
  std::copy_n(about.members.begin(), page->members, page->ranks);
  set_text(page->name, kTextBytes, about.name);
  set_text(page->description, kTextBytes, about.description);
  ++page->times;
  make_even(page->stamp);
  return {static_cast<uint16_t>(page - file_->groups), page->times};
}

void Records::close_group(const Group& group) {
  if (group.place == kNoGroup) return;
  const std::lock_guard<std::mutex> lock(g_groups);
  GroupPage& page = file_->groups[group.place];
  if (page.times == group.times) {
    page.closed.store(std::max<uint64_t>(now(), 1), std::memory_order_relaxed);
  }
}

CallRecord Records::begin(const AboutCall& about) noexcept {
  Header& header = file_->header;
  for (uint64_t passed = 0; passed < kCalls; ++passed) {
    const uint64_t number = header.next.fetch_add(1, std::memory_order_relaxed);
    CallPlace& place = file_->calls[number % kCalls];
    uint64_t stamp = place.stamp.load(std::memory_order_relaxed);
    // Acquire: the owner's last stores come before those below.
    const bool is_free =
        stamp == 0 || (stamp % 2 == 0 && place.ended.load(std::memory_order_acquire) != 0);
    const uint64_t odd = FC_LEFT_OUT(Control::kEvenStamp) ? 2 * number + 2 : 2 * number + 1;
    if (!is_free || !place.stamp.compare_exchange_strong(stamp, odd, std::memory_order_relaxed)) {
      header.passed.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    // The next place will be here when it is needed.
    __builtin_prefetch(&file_->calls[(number + 1) % kCalls], 1);
    std::atomic_thread_fence(std::memory_order_release);  // Order, in the header
    const auto set = [](Word& word, uint64_t value) {
      word.store(value, std::memory_order_relaxed);
    };
    set(place.started, 0);
    set(place.ended, 0);
    set(place.sequence, about.sequence);
    set(place.count, about.count);
    set(place.bytes, about.bytes);
    set(place.about, about.operation | uint64_t{about.dtype} << 8 |
                         uint64_t{about.reduction} << 16 | uint64_t{about.engine} << 24 |
                         uint64_t{about.flags} << 32 | uint64_t{about.group.place} << 48);
    set(place.path, uint64_t{about.lane} << 8);
    set(place.rank,
        static_cast<uint32_t>(about.rank) | uint64_t{static_cast<uint32_t>(about.tag)} << 32);
    set(place.thread, thread_number());
    set(place.times, about.group.times);
    const uint64_t issued = now();
    set(place.issued, issued);
    place.stamp.store(2 * number + 2, std::memory_order_release);
    if (issued >= clock_due_.load(std::memory_order_relaxed)) set_clock(issued);
    return {&place, 2 * number + 2, first_};
  }
  header.dropped.fetch_add(1, std::memory_order_relaxed);
  return {};
}

std::unique_ptr<File> copy_of_records(int fd) {
  if (fd < 0) return nullptr;
  const auto before = std::make_unique<File>(), after = std::make_unique<File>();
  auto file = std::make_unique<File>();
  for (int attempt = 0; attempt < 100; ++attempt) {
    // One after the other, by system calls of their own (Order, in the header).
    if (!read_whole(fd, *before) || !read_whole(fd, *file) || !read_whole(fd, *after)) break;
    if (file->header.magic != kMagic || file->header.version != kVersion) break;
    const uint64_t clock = file->header.clock_after;
    const bool is_set = clock % 2 == 0 && before->header.clock_before == clock &&
                        file->header.clock_before == clock && after->header.clock_before == clock;
    if (!is_set) continue;
    for (int page = 0; page < kGroups; ++page) {
      mark_mixed(file->groups[page], before->groups[page], after->groups[page]);
    }
    for (uint64_t call = 0; call < kCalls; ++call) {
      mark_mixed(file->calls[call], before->calls[call], after->calls[call]);
    }
    return file;
  }
  return nullptr;
}

}  // namespace fastcomm
