// How the bytes of a fuzzer become choices: taken one after the other, zeros once they are used up.
// Nothing to take means "as an honest peer would": so the empty input is a valid handshake, and
// each byte of a longer one moves away from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace fastcomm::testing {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }
  uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  uint64_t word() {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= uint64_t{byte()} << (8 * i);
    return value;
  }
  std::string bytes(size_t wanted) {
    std::string result;
    while (wanted-- > 0 && size_ > 0) result.push_back(static_cast<char>(byte()));
    return result;
  }

  /// Changes `value` as the input says; whether it did.
  bool tamper(std::string& value) {
    const std::string before = value;
    for (int steps = byte() % 4; steps > 0; --steps) {
      const uint8_t how = byte();
      const size_t at = value.empty() ? 0 : (byte() | size_t{byte()} << 8) % value.size();
      switch (how % 8) {
        case 0:
          value.resize(at);
          break;
        case 1:
          value += bytes(byte());
          break;
        case 2:
          value = bytes(byte());
          break;
        case 3:
          if (!value.empty()) value[at] = static_cast<char>(value[at] ^ byte());
          break;
        case 4:
          value.replace(at, std::min<size_t>(8, value.size() - at), word_bytes());
          break;
        case 5:
          value.append(size_t{byte()} * 64, 'x');
          break;
        case 6:
          value.insert(at, bytes(1 + byte() % 8));
          break;
        default:
          value.erase(at, 1 + byte() % 16);
      }
    }
    return value != before;
  }

 private:
  std::string word_bytes() {
    const uint64_t value = word();
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  const uint8_t* data_;
  size_t size_;
};

}  // namespace fastcomm::testing
