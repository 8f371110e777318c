#pragma once

#include <string>
#include <string_view>

namespace fastcomm {

/// True if a byte continues a UTF-8 character: no text is cut before it.
inline bool within_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

/// The longest beginning of whole characters that fits in `most` bytes.
inline std::string_view beginning_of(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && within_character(text[most])) --most;
  return text.substr(0, most);
}

/// The longest end of whole characters that fits in `most` bytes.
inline std::string ending_of(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  size_t begin = text.size() - most;
  while (begin < text.size() && within_character(text[begin])) ++begin;
  return text.substr(begin);
}

/// The text cut to `most` bytes: if it is longer, "..." replaces the part before its last third.
inline std::string without_middle(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  const std::string ending = ending_of(text, most / 3);
  return std::string(beginning_of(text, most - 3 - ending.size())) + "..." + ending;
}

}  // namespace fastcomm
