#pragma once

#include <string>

namespace fastcomm {

/// Whether a byte goes on with a UTF-8 character that an earlier one begins: no text is cut before it.
inline bool within_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

/// As many whole characters of the beginning as fit in `most` bytes.
inline std::string beginning_of(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && within_character(text[most])) --most;
  return text.substr(0, most);
}

}  // namespace fastcomm
