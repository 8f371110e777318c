#include "c10d/life/record_dump.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <vector>

#include "core/error.h"
#include "core/process_stat.h"
#include "core/records.h"
#include "transport/bootstrap.h"
#include "transport/fd.h"
#include "transport/shm/endpoint.h"

namespace fastcomm {
namespace {

using records::File;
using records::GroupPage;

struct RankRecords {
  std::unique_ptr<File> file;
  std::string state;
  uint64_t read_at;
};

/// The rank's number in the job; -1 if it has no group that tells.
int number_in(const File& file) {
  for (const GroupPage& page : file.groups) {
    if (page.stamp == 0 || page.rank < 0) continue;
    if (static_cast<uint32_t>(page.rank) >= std::min<uint32_t>(page.members, records::kMembers)) {
      continue;
    }
    return static_cast<int>(page.ranks[page.rank]);
  }
  return -1;
}

/// The ranks by number.
std::map<int, RankRecords> all_ranks() {
  std::map<int, RankRecords> ranks;
  const auto add = [&](int fd) {
    auto file = copy_of_records(fd);
    const int number = file == nullptr ? -1 : number_in(*file);
    if (number < 0) return;
    const ProcessStat stat = ProcessStat::of(std::to_string(file->header.pid));
    const bool is_here = stat.start_time == file->header.start_time;
    const std::string words = is_here ? stat.words() : "";
    ranks[number] = {std::move(file), words.empty() ? "gone" : words, monotonic_ns()};
  };
  if (const Records* const own = Records::instance()) add(own->fd());
  for (const auto& peer : Endpoint::known_peers()) add(peer->records.get());
  return ranks;
}

/// A text as JSON: without control characters.
std::string quoted(const std::string& text) {
  std::string all = "\"";
  for (const char each : text) {
    if (each == '"' || each == '\\') all += '\\';
    all += static_cast<unsigned char>(each) < ' ' ? ' ' : each;
  }
  return all + "\"";
}

/// What `fastcomm trace` expects beside the records (fastcomm/_records/saved.py).
std::string about(const std::map<int, RankRecords>& ranks, const std::string& host,
                  const std::string& why) {
  char date[32] = {};
  const time_t now = time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S+00:00", &parts);
  std::string list;
  for (const auto& [number, rank] : ranks) {
    list += concat(list.empty() ? "" : ", ", "{\"rank\": ", number,
                   ", \"pid\": ", rank.file->header.pid, ", \"state\": ", quoted(rank.state),
                   ", \"read_at\": ", rank.read_at, "}");
  }
  return concat("{\"date\": ", quoted(date), ", \"host\": ", quoted(host),
                ", \"why\": ", quoted(why), ", \"ranks\": [", list, "]}\n");
}

/// A tar archive (POSIX.1-1988, "ustar") in a file.
class Archive {
 public:
  explicit Archive(int fd) : fd_(fd) {}

  void add(const std::string& name, const void* data, size_t bytes) {
    char header[kBlock] = {};
    std::snprintf(header, 100, "%s", name.c_str());
    std::snprintf(header + 100, 8, "%07o", 0600U);
    std::snprintf(header + 108, 8, "%07o", 0U);
    std::snprintf(header + 116, 8, "%07o", 0U);
    std::snprintf(header + 124, 12, "%011llo", static_cast<unsigned long long>(bytes));
    std::snprintf(header + 136, 12, "%011llo", static_cast<unsigned long long>(time(nullptr)));
    std::memset(header + 148, ' ', 8);  // of the sum, while it is added up
    header[156] = '0';                  // a regular file
    std::memcpy(header + 257, "ustar\00000", 8);
    unsigned sum = 0;
    for (const char each : header) sum += static_cast<unsigned char>(each);
    std::snprintf(header + 148, 8, "%06o", sum);
    write_all(header, kBlock);
    write_all(data, bytes);
    const char zeros[kBlock] = {};
    write_all(zeros, (kBlock - bytes % kBlock) % kBlock);
  }
  void end() {
    const char zeros[2 * kBlock] = {};
    write_all(zeros, sizeof(zeros));
  }

 private:
  static constexpr size_t kBlock = 512;

  void write_all(const void* data, size_t bytes) {
    const auto* at = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t part = TEMP_FAILURE_RETRY(write(fd_, at, bytes));
      FC_SYSCALL(part > 0, "write of records");
      at += part;
      bytes -= static_cast<size_t>(part);
    }
  }
  const int fd_;
};

}  // namespace

std::string write_records(const std::string& folder, uint64_t token, const std::string& why) {
  char host[64] = "host";
  gethostname(host, sizeof(host) - 1);
  const std::string path = concat(folder, "/fastcomm-", hex(token), "-", host, ".records");
  const std::string unfinished = path + ".part";
  mkdir(folder.c_str(), 0700);  // if it is not there
  // One rank makes it; others find it, or its beginning.
  if (access(path.c_str(), F_OK) == 0) return path;
  const Fd fd(open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (fd.get() < 0 && errno == EEXIST) return path;
  FC_SYSCALL(fd.get() >= 0, ("open of " + unfinished).c_str());
  try {
    const auto ranks = all_ranks();
    Archive archive(fd.get());
    const std::string text = about(ranks, host, why);
    archive.add("about.json", text.data(), text.size());
    for (const auto& [number, rank] : ranks) {
      archive.add(concat("rank-", number, ".records"), rank.file.get(), sizeof(File));
    }
    archive.end();
    FC_SYSCALL(rename(unfinished.c_str(), path.c_str()) == 0, "rename of records");
  } catch (...) {
    unlink(unfinished.c_str());
    throw;
  }
  return path;
}

}  // namespace fastcomm
