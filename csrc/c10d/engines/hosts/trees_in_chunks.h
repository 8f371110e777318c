// A sum over hosts whose ranks are not complete subtrees of the group's tree: chunks on their way.
//
// A host has a partial for each of its largest subtrees (HostLayout::trees). A rank gets its slice
// of all terms of its host, adds up the subtrees, and sends each other host its part of them; every
// host sums its part, in the order of the tree, and sends the others the result. A host sends
// (P + 1) (H - 1) / H S, if it has P subtrees.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "c10d/engines/hosts/sum_in_chunks.h"
#include "core/numeric.h"

namespace fastcomm {

/// `Ends` as of SumInChunks. Memory of a chunk: their room; the terms of this rank's slice, in
/// whose places the partials are made; those of each other host; the result.
template <class Ends>
struct TreesInChunks {
  using Chunk = HostExchange::Chunk;

  HostCall& call;
  const PartialSum& sum;
  Ends ends;
  HostInside& inside;
  HostExchange& between;
  const HostLayout& layout = between.layout();
  const uint64_t each =
      between.thresholds().chunk_of(ends.count() * sum.partial_size()) / sum.partial_size();
  const uint64_t slice = ceil_div(smaller(each, ends.count()), inside.size());
  const uint64_t wide = round_up(slice * sum.partial_size(), 64);
  const uint64_t part_wide =
      round_up(ceil_div(slice, layout.num_hosts()) * sum.partial_size(), 64) + 64;
  const uint64_t room = ends.room(round_up(smaller(each, ends.count()) * sum.partial_size(), 64));
  const uint64_t memory =
      room + (static_cast<uint64_t>(inside.size()) + 1) * wide + layout.num_trees() * part_wide;

  char* term(const Chunk& chunk, int place) const {
    return chunk.memory + room + static_cast<uint64_t>(place) * wide;
  }
  char* result(const Chunk& chunk) const { return term(chunk, inside.size()); }
  /// The place of a subtree's partial: of this host, whole; else this host's part.
  char* partial(const Chunk& chunk, int host, size_t tree) const {
    if (host == between.own()) return term(chunk, layout.trees[host][tree].place);
    char* at = term(chunk, inside.size() + 1);
    for (int before = 0; before < host; ++before) at += layout.trees[before].size() * part_wide;
    return at + tree * part_wide;
  }
  EqualSlices slices(const Chunk& chunk) const { return {chunk.span, inside.size()}; }
  Span part(const Chunk& chunk, int host) const {
    return part_of(slices(chunk).length, between.num_hosts(), host);
  }

  void prepare(Chunk& chunk) {
    const uint64_t own = part(chunk, between.own()).count * sum.travel_size();
    between.each_other([&](int host) {
      for (size_t tree = 0; tree < layout.trees[host].size(); ++tree) {
        between.expect(chunk.expected, host, Mail::kPartial, partial(chunk, host, tree), own);
      }
      const Span theirs = part(chunk, host);
      between.expect(chunk.results, host, Mail::kResult, result(chunk) + theirs.first * sum.size(),
                     theirs.count * sum.size());
    });
  }

  void open(Chunk& chunk) {
    if (ends.needs_agreement()) between.compared(call);
    share_terms(chunk);
    const uint64_t length = slices(chunk).length;
    const auto& trees = layout.trees[between.own()];
    for (size_t tree = 0; tree < trees.size(); ++tree) {
      std::vector<const void*> terms;
      for (int rank = trees[tree].first; rank < trees[tree].end; ++rank) {
        terms.push_back(term(chunk, trees[tree].place + rank - trees[tree].first));
      }
      char* const made = partial(chunk, between.own(), tree);
      sum.add_terms(terms, length, made);
      sum.make_ready(made, length);
    }
    between.compared(call);
    between.each_other([&](int host) {
      const Span theirs = part(chunk, host);
      for (size_t tree = 0; tree < trees.size(); ++tree) {
        between.send(chunk.sent, host, Mail::kPartial,
                     partial(chunk, between.own(), tree) + theirs.first * sum.travel_size(),
                     theirs.count * sum.travel_size());
      }
    });
  }

  void middle(Chunk& chunk) {
    HostExchange::wait(chunk.expected, call);
    const Span own = part(chunk, between.own());
    char* const total = result(chunk) + own.first * sum.size();
    if (own.count != 0) add_up(chunk, own, total);
    between.each_other([&](int host) {
      between.send(chunk.sent, host, Mail::kResult, total, own.count * sum.size());
    });
  }

  void close(Chunk& chunk) {
    HostExchange::wait(chunk.results, call);
    gather_slices(call, sum, inside, chunk.span, result(chunk),
                  ends.target(chunk.span, chunk.memory));
    ends.done(chunk.span, chunk.memory);
    HostExchange::wait(chunk.sent, call);
  }

 private:
  /// This rank gets its slice of the terms of all ranks of the host.
  void share_terms(const Chunk& chunk) {
    const auto* terms = static_cast<const char*>(ends.terms(chunk.span, chunk.memory));
    const EqualSlices cuts = slices(chunk);
    const uint64_t bytes = cuts.length * sum.partial_size();
    auto messages = std::make_shared<Messages>(inside.size());
    for (int place = 0; place < inside.size(); ++place) {
      const uint64_t first = cuts.first(place) - chunk.span.first;
      messages->sends[place] = {terms + first * sum.partial_size(), bytes};
      messages->receives[place] = {term(chunk, place), bytes};
    }
    inside.exchange(call, messages);
  }

  /// Sums all partials' elements of the part, in the order of the tree.
  void add_up(const Chunk& chunk, const Span& own, char* total) {
    struct Known {
      int first, end;
      char* data;
    };
    std::vector<Known> known;
    for (int host = 0; host < between.num_hosts(); ++host) {
      for (size_t tree = 0; tree < layout.trees[host].size(); ++tree) {
        char* at = partial(chunk, host, tree);
        if (host == between.own()) at += own.first * sum.travel_size();
        known.push_back({layout.trees[host][tree].first, layout.trees[host][tree].end, at});
      }
    }
    std::sort(known.begin(), known.end(),
              [](const Known& a, const Known& b) { return a.first < b.first; });
    if (sum.travels != sum.partial) {  // rounded already: all at once, so that none is again
      std::vector<const void*> all;
      for (const Known& each_one : known) all.push_back(each_one.data);
      return sum.total(all, own.count, known[0].data, total);
    }
    size_t next = 0;
    // The node over ranks [first, end), in the place of its first partial.
    const auto node = [&](const auto& self, int first, int end) -> char* {
      if (known[next].first == first && known[next].end == end) return known[next++].data;
      const int middle = first + tree_left(end - first);
      char* const left = self(self, first, middle);
      char* const right = self(self, middle, end);
      if (end - first == inside.whole_size()) {
        sum.total({left, right}, own.count, left, total);
      } else {
        const void* const both[] = {left, right};
        sum.add(ReduceSpan{left, nullptr, both, 2, own.count, 1});
      }
      return left;
    };
    node(node, 0, inside.whole_size());
  }
};

}  // namespace fastcomm
