// Records: what a place holds, which places are given on, what a reader beside the writers sees.
//
//   records_test CASE SEED
#include "core/records.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"

namespace fastcomm::testing {
namespace {

using namespace records;

/// Records in memory of their own.
class Made {
 public:
  Made() : memory_(mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, kPrivate, -1, 0)) {
    records_ = std::make_unique<Records>(memory_, -1, "operation\t1\tall_reduce\n");
  }
  ~Made() { munmap(memory_, sizeof(File)); }
  Records* operator->() const { return records_.get(); }
  CallRecord begin(uint64_t count = 1) const {
    Records::AboutCall about{};
    about.count = count;
    return records_->begin(about);
  }
  const Header& header() const { return records_->file().header; }
  const CallPlace& place(uint64_t number) const { return records_->file().calls[number % kCalls]; }

 private:
  static constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
  void* memory_;
  std::unique_ptr<Records> records_;
};

CASE(life) {
  const Made made;
  Records::AboutCall about{};
  about.operation = 1;
  about.dtype = 6;
  about.engine = 3;
  about.flags = kAsync;
  about.lane = 2;
  about.rank = -1;
  about.tag = 9;
  about.count = 100;
  about.bytes = 400;
  about.group = {4, 5};
  const CallRecord record = made->begin(about);
  const CallPlace& place = made.place(0);
  EXPECT(place.stamp == 2 && place.started == 0 && place.ended == 0);
  EXPECT(place.sequence == kNoSequence && place.count == 100 && place.bytes == 400);
  EXPECT(place.about == (1 | 6 << 8 | 3 << 24 | uint64_t{kAsync} << 32 | uint64_t{4} << 48));
  EXPECT(place.path == 2 << 8 && place.rank == (0xFFFFFFFF | uint64_t{9} << 32));
  EXPECT(place.times == 5 && place.thread == static_cast<uint64_t>(gettid()));
  record.number(17, 3);
  EXPECT(place.sequence == 17 && place.path == (2 << 8 | 3));
  record.start();
  record.end(kWell);
  const uint64_t ended = place.ended;
  EXPECT((ended & 15) == kWell && place.issued <= place.started && place.started <= ended >> 4);
  record.end(kUnknown);  // it has ended
  EXPECT(place.ended == ended);
  CallRecord().start();  // of nothing
  CallRecord().end(kWell);
}

/// Open calls keep their places, however many come after them; a handle of a call that has ended
/// does not touch the next one's.
CASE(turns) {
  const Made made;
  std::vector<CallRecord> open;
  for (uint64_t i = 0; i < 3 * kCalls; ++i) {
    const CallRecord record = made.begin(i);
    if (i % 1000 == 0) {
      open.push_back(record);
    } else {
      record.end(kWell);
      record.start();
    }
  }
  EXPECT(made.header().next - made.header().passed == 3 * kCalls && made.header().dropped == 0);
  size_t still_open = 0, well = 0;
  for (const CallPlace& place : made->file().calls) {
    if (place.ended == 0) ++still_open;
    if (place.ended != 0 && place.count % 1000 != 0) ++well;
  }
  EXPECT(still_open == open.size() && well == kCalls - open.size(), still_open, " ", well);
  for (const CallRecord& record : open) record.end(kWell);
  const CallRecord old = made.begin();
  old.end(kWell);
  for (uint64_t i = 0; i < 2 * kCalls; ++i) made.begin(7).end(kWell);
  old.start(), old.number(1, 1), old.end(kUnknown);
  for (const CallPlace& place : made->file().calls) {
    EXPECT(place.started == 0 && place.sequence == kNoSequence && (place.ended & 15) == kWell);
  }
}

CASE(all_open) {
  const Made made;
  std::vector<CallRecord> open;
  for (uint64_t i = 0; i < kCalls; ++i) open.push_back(made.begin());
  EXPECT(open.back().exists() && made.header().dropped == 0);
  EXPECT(!made.begin().exists() && made.header().dropped == 1);
  open[5].end(kWell);
  EXPECT(made.begin().exists() && made.header().dropped == 1);
}

CASE(groups) {
  const Made made;
  std::vector<Records::Group> groups;
  std::vector<uint64_t> members(5000);
  for (size_t i = 0; i < members.size(); ++i) members[i] = i;
  for (int i = 0; i < kGroups; ++i) {
    groups.push_back(made->open_group({{1, 2}, i, 5000, "name", std::string(100, 'd'), members}));
    EXPECT(groups.back().place == i && groups.back().times == 1);
  }
  const GroupPage& page = made->file().groups[3];
  EXPECT(page.stamp == 2 && page.rank == 3 && page.size == 5000 && page.closed == 0);
  EXPECT(page.members == kMembers && page.ranks[kMembers - 1] == kMembers - 1);
  EXPECT(std::string(page.name) == "name" && std::string(page.description).size() == 63);
  const Records::AboutGroup another{{3, 4}, 0, 1, "", "", {}};
  EXPECT(made->open_group(another).place == kNoGroup);
  made->close_group(made->open_group(another));  // of none
  made->close_group(groups[9]);
  made->close_group(groups[3]);
  const auto next = made->open_group(another);  // that which was closed first
  EXPECT(next.place == 9 && next.times == 2 && made->file().groups[9].stamp == 4);
  made->close_group(groups[9]);  // another's by now
  EXPECT(made->file().groups[9].closed == 0 && page.closed != 0);
}

/// Times of the counter as those of the system, soon and later.
CASE(clock) {
  const Made made;
  const auto check = [&] {
    const Header& header = made.header();
    const auto ns = static_cast<double>(header.latest_ns - header.first_ns);
    const auto rate = ns / static_cast<double>(header.latest_ticks - header.first_ticks);
    double least = 1e9;  // a thread may be suspended between both
    for (int attempt = 0; attempt < 20; ++attempt) {
      const double told = rate * static_cast<double>(made->now());
      const double is = static_cast<double>(monotonic_ns() - header.first_ns);
      least = std::min(least, std::abs(told - is));
    }
    return least;
  };
  EXPECT(check() < 20e3, check());
  const uint64_t first = made.header().latest_ticks;
  for (int i = 0; i < 30; ++i) {
    made.begin().end(kWell);
    const timespec nap{0, 5'000'000};
    nanosleep(&nap, nullptr);
  }
  EXPECT(check() < 20e3, check());
  EXPECT(!has_counter() || made.header().latest_ticks > first);
  EXPECT(made.header().clock_before == made.header().clock_after);
}

/// A reader finds every place whole that it takes for whole: each word has its call's number.
CASE(beside) {
  const Made made;
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (int thread = 0; thread < 2; ++thread) {
    writers.emplace_back([&] {
      for (uint64_t number = 0; !stop; ++number) {
        Records::AboutCall about{};
        about.sequence = about.count = about.bytes = number;
        about.group.times = static_cast<uint32_t>(number);
        made->begin(about).end(kWell);
      }
    });
  }
  uint64_t whole = 0, mixed = 0;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t number = 0; seconds_since(start) < 0.5; ++number) {
    const CallPlace& place = made.place(number);
    const uint64_t before = place.stamp.load(std::memory_order_acquire);
    const uint64_t words[] = {place.sequence.load(std::memory_order_acquire),
                              place.count.load(std::memory_order_acquire),
                              place.bytes.load(std::memory_order_acquire)};
    const uint64_t times = place.times.load(std::memory_order_acquire);
    if (before == 0 || before % 2 != 0 || place.stamp.load() != before) continue;
    ++whole;
    const bool same = words[0] == words[1] && words[1] == words[2] && words[0] == times;
    mixed += same ? 0 : 1;
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
  EXPECT(whole > 1000, whole);
  EXPECT(mixed == 0, mixed, " of ", whole, " places were mixed");
}

/// A copy of a file that is written has no place that it takes for whole and is not.
CASE(copies) {
  Records* const records = Records::open("");
  EXPECT(records != nullptr && copy_of_records(-1) == nullptr);
  if (records == nullptr) return;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t number = 0; !stop; ++number) {
      Records::AboutCall about{};
      about.sequence = about.count = about.bytes = number;
      records->begin(about).end(kWell);
    }
  });
  uint64_t whole = 0, mixed = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto copy = copy_of_records(records->fd());
    EXPECT(copy != nullptr);
    for (size_t at = 0; copy != nullptr && at < kCalls; ++at) {
      const CallPlace& place = copy->calls[at];
      if (place.stamp == 0 || place.stamp % 2 != 0) continue;
      ++whole;
      if (place.sequence != place.count || place.count != place.bytes) ++mixed;
    }
  }
  stop = true;
  writer.join();
  EXPECT(whole > 0, whole);
  EXPECT(mixed == 0, mixed, " of ", whole, " places were mixed");
}

/// What a child of fork() writes is not in its parent's file.
CASE(fork) {
  Records* const records = Records::open("");
  EXPECT(records != nullptr && Records::open("") == records && records->fd() >= 0);
  if (records == nullptr) return;
  const uint64_t first = records->file().header.next;
  const CallRecord open = records->begin({});
  const pid_t child = ::fork();
  if (child == 0) {
    open.end(kWell);
    records->begin({}).end(kWell);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT(status == 0, status);
  const File& file = records->file();
  EXPECT(file.header.next == first + 1 && file.calls[first % kCalls].ended == 0);
  EXPECT(file.calls[(first + 1) % kCalls].stamp != 2 * first + 4);
  EXPECT(file.header.magic == kMagic && file.header.pid == getpid());
  EXPECT(ftruncate(records->fd(), 0) != 0 && ftruncate(records->fd(), sizeof(File) + 1) != 0);
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
