#pragma once

#include <string>
#include <string_view>

namespace fastcomm {

/// Whether a byte goes on with a UTF-8 character that an earlier one begins: no text is cut before it.
inline bool within_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

/// As many whole characters of the beginning as fit in `most` bytes.
inline std::string_view beginning_of(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && within_character(text[most])) --most;
  return text.substr(0, most);
}

/// As many whole characters of the end as fit in `most` bytes.
inline std::string ending_of(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  size_t begin = text.size() - most;
  while (begin < text.size() && within_character(text[begin])) ++begin;
  return text.substr(begin);
}

/// A text that fits in `most` bytes: where it is longer "..." stands for what is before its last third.
inline std::string without_middle(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  const std::string ending = ending_of(text, most / 3);
  return std::string(beginning_of(text, most - 3 - ending.size())) + "..." + ending;
}

}  // namespace fastcomm
