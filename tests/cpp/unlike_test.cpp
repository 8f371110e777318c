// What messages tell of ranks that called different operations (coll/unlike.h).
//
//   unlike_test [CASE [SEED]]
#include "coll/unlike.h"

#include "check.h"
#include "core/utf8.h"
#include "transport/control_block.h"

namespace fastcomm::testing {
namespace {

/// Whether no character of two or four bytes lacks a part.
bool is_whole(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const size_t length = byte < 0x80 ? 1 : byte < 0xE0 ? 2 : 4;
    if (within_character(text[at]) || at + length > text.size()) return false;
    for (size_t i = 1; i < length; ++i) {
      if (!within_character(text[at + i])) return false;
    }
    at += length;
  }
  return true;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

/// Calls made in files with names of every length: two fit in a control block, decode, and keep
/// the operation and the line.
CASE(brief) {
  const std::string operation = "all_reduce(sum, float32, 5 elements), sequence 5, at ";
  const std::string line = "/train.py:103";
  for (const std::string character : {"o", "\xC3\xB6", "\xF0\x9F\x98\x80"}) {
    for (int length = 0; length < 300; ++length) {
      for (const char* shift : {"", "x", "xx", "xxx"}) {
        std::string call = operation + shift;
        for (int i = 0; i < length; ++i) call += character;
        Told told;
        told.add({0}, call + line);
        told.add({1, 2, 3}, call + line);
        told.add({4}, "barrier()");
        const std::string& text = told.brief();
        EXPECT(text.size() < sizeof(ControlBlock::reason), text.size(), " bytes: ", text);
        EXPECT(is_whole(text), text);
        EXPECT(text.find("rank 0 called " + operation) == 0, text);
        EXPECT(text.find(line + "; ranks 1-3 called " + operation) != std::string::npos, text);
        EXPECT(ends_with(text, line), text);
        const bool is_cut = text.find("...") != std::string::npos;
        const std::string longest = "ranks 1-3 called " + call + line;
        EXPECT(is_cut == (longest.size() > sizeof(ControlBlock::reason) / 2 - 3), text);
        EXPECT(told.text().find(call + line + "; rank 4 called barrier()") != std::string::npos,
               told.text());
      }
    }
  }
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
