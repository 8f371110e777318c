#pragma once

namespace fastcomm {

/// Whether a byte goes on with a UTF-8 character that an earlier one begins: no text is cut before it.
inline bool within_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

}  // namespace fastcomm
