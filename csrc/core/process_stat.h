// What /proc/PID/stat tells of a process.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace fastcomm {

struct ProcessStat {
  char state = '?';         // field 3: R, S, D, T, Z and others of proc(5)
  uint64_t start_time = 0;  // field 22: tells two processes of one number apart

  /// The state, for messages; "" if the process is not here.
  const char* words() const {
    switch (state) {
      case 'R':
        return "running";
      case 'S':
        return "sleeping";
      case 'D':
        return "waiting in the kernel";
      case 'T':
      case 't':
        return "stopped";
      case 'Z':
      case 'X':
        return "ended";
      default:
        return "";
    }
  }

  /// Of a number, or "self"; the default for a process that is not here.
  static ProcessStat of(const std::string& pid) {
    ProcessStat found;
    std::ifstream file("/proc/" + pid + "/stat");
    std::string line;
    std::getline(file, line);
    const size_t name_end = line.rfind(')');  // field 2 may have anything in it
    if (name_end == std::string::npos) return found;
    std::istringstream rest(line.substr(name_end + 1));
    rest >> found.state;
    std::string field;
    for (int number = 4; number <= 22; ++number) rest >> field;
    found.start_time = std::strtoull(field.c_str(), nullptr, 10);
    return found;
  }
};

}  // namespace fastcomm
