// How lists are divided among ranks (coll/list_plan.h).
//
//   list_plan_test [CASE [SEED]]
#include "coll/list_plan.h"
#include "check.h"

namespace fastcomm::testing {
namespace {

struct Piece {
  int part;
  size_t tensor;
  Span span;
};

void check(const std::vector<uint64_t>& counts, int parts, uint64_t line) {
  std::vector<Piece> pieces;
  divide_list(counts, parts, line,
              [&](int part, size_t tensor, Span span) { pieces.push_back({part, tensor, span}); });
  // Laid end to end the pieces are the list, in order of the parts.
  std::vector<uint64_t> done(counts.size(), 0);
  std::vector<uint64_t> lines(parts, 0);
  uint64_t all_lines = 0;
  size_t full = 0;
  int part = 0;
  for (const Piece& piece : pieces) {
    EXPECT(piece.part >= part && piece.part < parts, "part ", piece.part);
    part = piece.part;
    EXPECT(piece.span.count > 0 && piece.span.first == done[piece.tensor], "piece of ",
           piece.tensor);
    EXPECT(piece.span.first % line == 0, "begins within a line: ", piece.span.first);
    done[piece.tensor] += piece.span.count;
    lines[part] += ceil_div(piece.span.count, line);
  }
  EXPECT(done == counts, "not all of the list");
  for (const uint64_t count : counts) {
    all_lines += ceil_div(count, line);
    full += count != 0;
  }
  for (const uint64_t part_lines : lines) {
    EXPECT(part_lines >= all_lines / parts && part_lines <= ceil_div(all_lines, parts), part_lines,
           " of ", all_lines, " lines in one of ", parts, " parts");
  }
  EXPECT(pieces.size() <= full + parts - 1, pieces.size(), " pieces");
}

CASE(divide) {
  std::mt19937_64 random(seed);
  for (const std::vector<uint64_t>& counts :
       std::vector<std::vector<uint64_t>>{{}, {0}, {0, 0, 5}, {1}, {16}, {17, 0, 1}}) {
    for (int parts = 1; parts <= 16; ++parts) check(counts, parts, 16);
  }
  for (int repeat = 0; repeat < 2000; ++repeat) {
    std::vector<uint64_t> counts(random() % 40);
    for (uint64_t& count : counts) count = random() % 4 == 0 ? 0 : random() % (1 + random() % 5000);
    check(counts, 1 + static_cast<int>(random() % 16), uint64_t{8} << random() % 4);
  }
  check({uint64_t{1} << 61, 3}, 16, 64);  // no overflow
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
