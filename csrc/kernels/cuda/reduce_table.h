// The table of a batched reduction, and one thread's work on a segment of it.
//
// A record holds a head, the sources, then the destinations; records of one launch have one length.
// A kernel may have a head of its own, which starts like SegmentHead. Memory ordering: none of its
// own (kernels/cuda/multi_reduce.cu).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/cuda_host.h"
#include "core/hd.h"
#include "core/numeric.h"
#include "kernels/channel.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/copy_block.h"
#include "kernels/cuda/reduce_pack.h"
#include "kernels/cuda/reduce_spec.h"

namespace fastcomm {

/// Alignment of a segment's memory to packs.
enum Lie : uint16_t {
  kSingle,   // not at all: element by element
  kAlike,    // sources and destinations share an alignment
  kShifted,  // they do not, but packs can be cut out of the sources
};

/// A record of the table: a head, then the sources, then the destinations.
struct SegmentHead {
  uint32_t first_chunk;  // of the launch
  uint16_t lead;    // elements from a pack to the segment's start: chunks are counted from there
  uint16_t packed;  // a Lie; not 0: in packs
  uint64_t count;   // elements, more than 0
};

/// Chunks of a segment, of `chunk` elements each.
inline uint64_t chunks_of(const SegmentHead& head, uint64_t chunk) {
  return (head.lead + head.count + chunk - 1) / chunk;
}

/// A kernel over a table of reductions.
template <class Table>
struct ReduceKernel {
  void (*kernel)(Table) = nullptr;  // nullptr: there is none
  uint64_t chunk = 0;               // elements
};

/// Raises Error(kInvalidArgument) if `count` "sources" or "destinations" are too many or too few
/// for `kernel`.
inline void check_ends(const char* kernel, int count, const char* ends) {
  FC_CHECK(count >= 1 && count <= kMaxReduceSources, kernel, ": ", count, " ", ends, ", 1 to ",
           kMaxReduceSources, " are possible");
}

constexpr int kSmallTable = 500;    // words: 4 KB of parameters with the rest of them
constexpr int kMediumTable = 1280;  // 10 KB: 256 segments of two sources and one destination
constexpr int kLargeTable = 4088;   // 32 KB

template <class Head>
FC_HD constexpr int record_words(int num_sources, int num_destinations) {
  static_assert(sizeof(Head) % sizeof(uint64_t) == 0, "no padding");
  return static_cast<int>(sizeof(Head) / sizeof(uint64_t)) + num_sources + num_destinations;
}

/// Values that all segments of a launch have in common.
struct ReduceTerms {
  uint32_t chunks;
  int count;
  int num_sources;
  int num_destinations;
  int divisor;
  float scale_float;  // the scale in either accumulator
  double scale_double;
  const ChannelState* channel;  // nullptr, or the channel whose failure leaves nothing to do

  void begin(const ReduceSpec& spec) {
    chunks = 0;
    count = 0;
    num_sources = spec.num_sources;
    num_destinations = spec.num_destinations;
    divisor = spec.divisor;
    scale_float = static_cast<float>(spec.scale);
    scale_double = spec.scale;
    channel = nullptr;
  }
};

/// A table of any size: the kernels' code uses this, so that tables of all sizes share it.
template <class Head>
struct TableView {
  static constexpr int kHeadWords = record_words<Head>(0, 0);

  const ReduceTerms& terms;
  const uint64_t* words;

  /// Words of a record.
  FC_HD int stride() const { return record_words<Head>(terms.num_sources, terms.num_destinations); }
  FC_HD uint32_t first_chunk(int record) const {
    return static_cast<uint32_t>(words[record * stride()]);
  }
};

template <int kWords, class Head = SegmentHead>
struct ReduceTable : ReduceTerms {
  uint64_t words[kWords];  // not cleared: kernels read `count` records

  FC_HD TableView<Head> view() const { return {*this, words}; }

  bool full() const { return count == kWords / view().stride(); }
  /// Adds a record of `its_chunks` chunks; the table must not be full. Raises
  /// Error(kInvalidArgument).
  void add(Head head, const ReduceSegment& segment, const ReduceSpec& spec, uint64_t its_chunks) {
    add(head, segment, spec, its_chunks, [&](const char* source) {
      return kernel_view(source, segment.count * dtype_size(spec.in), Touch::kRead);
    });
  }
  /// The same; view_of(source) is the address that the kernel uses.
  template <class ViewOf>
  void add(Head head, const ReduceSegment& segment, const ReduceSpec& spec, uint64_t its_chunks,
           const ViewOf& view_of) {
    head.first_chunk = chunks;
    FC_CHECK(chunks + its_chunks < uint64_t{1} << 31,
             "a reduction of more elements than one launch can count");
    chunks += static_cast<uint32_t>(its_chunks);
    uint64_t* record = words + count++ * view().stride();
    memcpy(record, &head, sizeof(head));
    record += view().kHeadWords;
    for (int j = 0; j < num_sources; ++j) {
      *record++ = address_of(view_of(static_cast<const char*>(segment.sources[j])));
    }
    for (int d = 0; d < num_destinations; ++d) {
      *record++ = address_of(kernel_view(static_cast<char*>(segment.destinations[d]),
                                         segment.count * dtype_size(spec.out), Touch::kWrite));
    }
  }
  /// Adds records of as many segments as it holds, in chunks of `chunk` elements, none for empty
  /// ones. Returns the number of segments taken.
  template <class HeadOf>
  int take(const ReduceSegment* segments, int most, const ReduceSpec& spec, uint64_t chunk,
           const HeadOf& head_of) {
    int taken = 0;
    for (; taken < most && !full(); ++taken) {
      if (segments[taken].count == 0) continue;
      const Head head = head_of(segments[taken], spec);
      add(head, segments[taken], spec, chunks_of(head, chunk));
    }
    return taken;
  }
};
static_assert(sizeof(ReduceTable<kLargeTable>) <= kMaxParameterBytes, "parameters");

/// The head of a segment's record: kSingle or kAlike. Raises Error(kInvalidArgument) for memory
/// that is not aligned to its elements.
inline SegmentHead head_of(const ReduceSegment& segment, const ReduceSpec& spec) {
  uintptr_t any = 0;    // a bit that one address has
  uintptr_t apart = 0;  // a bit in which two addresses differ
  const uintptr_t one = address_of(segment.sources[0]);
  const auto look = [&](const void* pointer, DType dtype) {
    FC_CHECK(address_of(pointer) % dtype_size(dtype) == 0,
             "a source or destination of a reduction is not aligned to ", dtype_name(dtype));
    any |= address_of(pointer);
    apart |= address_of(pointer) ^ one;
  };
  for (int j = 0; j < spec.num_sources; ++j) look(segment.sources[j], spec.in);
  for (int d = 0; d < spec.num_destinations; ++d) look(segment.destinations[d], spec.out);
  // Types of two sizes stay in step only from a pack on.
  const uint64_t size = dtype_size(spec.in);
  const bool same = size == dtype_size(spec.out);
  SegmentHead head{};
  head.packed = (same ? apart : any) % kPackBytes == 0 ? kAlike : kSingle;
  head.lead = static_cast<uint16_t>(head.packed != 0 ? one % kPackBytes / size : 0);
  head.count = segment.count;
  return head;
}

/// The same for kernels that know shifted loads: kShifted instead of kSingle, if possible. It
/// counts from a pack of the first destination.
inline SegmentHead head_with_shifts(const ReduceSegment& segment, const ReduceSpec& spec) {
  SegmentHead head = head_of(segment, spec);
  if (head.packed != kSingle) return head;
  const uint64_t lead = address_of(segment.destinations[0]) % kPackBytes / dtype_size(spec.out);
  for (int j = 0; j < spec.num_sources; ++j) {
    // A source whose packs are the counted ones is read only where it is reduced; no thread may
    // write any other.
    const uintptr_t counted = address_of(segment.sources[j]) - lead * dtype_size(spec.in);
    if (counted % kPackBytes == 0) continue;
    for (int d = 0; d < spec.num_destinations; ++d) {
      if (segment.destinations[d] == segment.sources[j]) return head;
    }
  }
  head.packed = kShifted;
  head.lead = static_cast<uint16_t>(lead);
  return head;
}

/// The same for kernels whose destinations may have any alignment to packs, if they are aligned to
/// their elements.
inline SegmentHead head_of_sources(const ReduceSegment& segment, const ReduceSpec& spec) {
  static_cast<void>(head_of(segment, spec));
  ReduceSpec sources = spec;
  sources.num_destinations = 0;
  return head_of(segment, sources);
}

/// Positions of a block in a segment, counted from the pack in which the segment starts: [low,
/// high), of which [pack_low, pack_high) are whole packs, all within [first, last).
struct PackRange {
  uint64_t low, high, pack_low, pack_high;

  FC_DEVICE PackRange(uint64_t low_, uint64_t high_, uint64_t elements, bool packed,
                      uint64_t first = 0, uint64_t last = ~uint64_t{0})
      : low(low_), high(high_) {
    pack_low = (low < first ? first : low) + (elements - 1);
    pack_low -= pack_low % elements;
    pack_high = high < last ? high : last;
    pack_high -= pack_high % elements;
    if (!packed || pack_high < pack_low) pack_low = pack_high = low;
  }
  /// The number of elements outside of packs, and the i-th of them.
  FC_DEVICE uint64_t singles() const { return (pack_low - low) + (high - pack_high); }
  FC_DEVICE uint64_t single(uint64_t i) const {
    return low + i < pack_low ? low + i : low + i + (pack_high - pack_low);
  }
};

/// Sizes of a thread's work at once. N: 1, 2, 4, 8 or 16, for more than N / 2 and up to N sources;
/// or 0 for any number of them.
template <class In, class Out, int N>
struct Shape {
  static constexpr int kPackElements =
      kPackBytes / (sizeof(In) < sizeof(Out) ? sizeof(In) : sizeof(Out));
  static constexpr int kPacks = N == 0 || N > kPacksInFlight ? 1 : kPacksInFlight / N;
};

/// Sums become sum / divisor * scale, each step rounded in the accumulator. Whether one of these is
/// 1 is asked once, not for each sum.
template <class In, int kCount>
FC_DEVICE void epilogue(const ReduceTerms& terms, Lanes<In, kCount>& sums) {
  using Acc = typename Numeric<In>::Acc;
  const auto each = [&](const auto& change) {
    FC_UNROLL
    for (int e = 0; e < kCount; ++e) sums.acc[e] = change(sums.acc[e]);
  };
  if (terms.divisor != 1) {
    each([&](Acc sum) { return Numeric<In>::divide(sum, terms.divisor); });
  }
  if constexpr (std::is_same<Acc, float>::value) {
    if (terms.scale_float != 1) each([&](Acc sum) { return mul_rn(sum, terms.scale_float); });
  } else if constexpr (std::is_same<Acc, double>::value) {
    if (terms.scale_double != 1) each([&](Acc sum) { return mul_rn(sum, terms.scale_double); });
  }
}

/// The way to load a RawIn.
template <class RawIn>
using LoadOf =
    std::conditional_t<std::is_same<RawIn, ShiftedLoad>::value, ShiftedLoad, PlainLoad<RawIn>>;

struct Nothing {
  template <class Results>
  FC_DEVICE void operator()(uint64_t, const Results&) const {}
};

/// One thread's view of a segment.
template <class In, class Out, int N, class Head>
struct SegmentWorker {
  static constexpr int kWidth = N == 0 ? kMaxTreeSources : N;

  TableView<Head> table;
  int at;  // the record's first word

  FC_DEVICE int num_sources() const {
    if constexpr (N == 1 || N == 2) return N;
    const int n = table.terms.num_sources;
    FC_ASSUME(n >= 1 && n > N / 2 && n <= kWidth);
    return n;
  }
  FC_DEVICE const char* source(int j) const {
    return global(reinterpret_cast<const char*>(table.words[at + table.kHeadWords + j]));
  }
  FC_DEVICE char* destination(int d) const {
    return global(reinterpret_cast<char*>(table.words[at + table.kHeadWords + num_sources() + d]));
  }

  /// Reduces kMany groups of elements, `step` elements apart, those that start below `end`. A group
  /// is as many elements as one or several RawOut hold, and is loaded as one or several RawIn;
  /// RawIn may be the name of a load. `also` gets every result: the start of its group, and its
  /// RawOuts.
  template <class RawIn, class RawOut, int kElements, int kMany, class Also = Nothing>
  FC_DEVICE void reduce(uint64_t first, uint64_t step, uint64_t begin, uint64_t end,
                        const Also& also = Also()) const {
    using Load = LoadOf<RawIn>;
    constexpr int kLanesIn = kLanes<In, typename Load::Raw>;
    constexpr int kLanesOut = kLanes<Out, RawOut>;
    constexpr int kParts = kElements / kLanesIn;
    Lanes<In, kLanesIn> sums[kMany * kParts] = {};
    sum_sources<In, Load, kWidth>(
        0, num_sources(),
        [&](int load) {
          const uint64_t i = first + load / kParts * step;
          return i >= begin && i < end;
        },
        [&](int j, int load) {
          const uint64_t i = first + load / kParts * step + load % kParts * kLanesIn;
          return source(j) + i * sizeof(In);
        },
        sums);
    FC_UNROLL
    for (Lanes<In, kLanesIn>& some : sums) epilogue(table.terms, some);
    RawOut results[kMany][kElements / kLanesOut];
    FC_UNROLL
    for (int k = 0; k < kMany; ++k) {
      Out out[kElements];
      FC_UNROLL
      for (int e = 0; e < kElements; ++e) {
        const Lanes<In, kLanesIn>& sum = sums[k * kParts + e / kLanesIn];
        out[e] = Numeric<Out>::store(sum.acc[e % kLanesIn]);
      }
      memcpy(results[k], out, sizeof(out));
    }
    // Usually there is one destination: copies of the code for more would cost registers, and
    // compilation time.
    FC_NO_UNROLL
    for (int d = 0; d < table.terms.num_destinations; ++d) {
      FC_UNROLL
      for (int k = 0; k < kMany; ++k) {
        const uint64_t i = first + k * step;
        if (i < begin || i >= end) continue;
        store_raws<std::is_same<RawIn, ShiftedLoad>::value, Out>(destination(d) + i * sizeof(Out),
                                                                 results[k]);
      }
    }
    FC_UNROLL
    for (int k = 0; k < kMany; ++k) {
      const uint64_t i = first + k * step;
      if (i >= begin && i < end) also(i, results[k]);
    }
  }
};

/// A thread block's chunks of a table, one after another.
template <class Head>
class ChunkWalk {
 public:
  explicit FC_DEVICE ChunkWalk(const TableView<Head>& table) : table_(table), chunk_(blockIdx.x) {
    find();
  }

  FC_DEVICE bool ended() const { return chunk_ >= table_.terms.chunks; }
  FC_DEVICE void next() {
    chunk_ += gridDim.x;
    find();
  }

  /// Of the launch.
  FC_DEVICE uint32_t chunk() const { return chunk_; }
  /// The first word of the record that the chunk belongs to, and its head.
  FC_DEVICE int at() const { return segment_ * table_.stride(); }
  FC_DEVICE Head head() const {
    Head head;
    memcpy(&head, &table_.words[at()], sizeof(head));
    return head;
  }

 private:
  FC_DEVICE void find() {
    if (ended()) return;
    segment_ = segment_beside([&](int i) { return table_.first_chunk(i); }, table_.terms.count,
                              segment_, chunk_);
  }

  const TableView<Head>& table_;
  uint32_t chunk_;
  int segment_ = 0;
};

/// Calls work(worker, head, chunk) for each chunk of this block, with the worker and the head of
/// its segment, and the number of the chunk in it.
template <class In, class Out, int N, class Head, class Work>
FC_DEVICE void each_chunk(const TableView<Head>& table, const Work& work) {
  for (ChunkWalk<Head> walk(table); !walk.ended(); walk.next()) {
    const Head head = walk.head();
    work(SegmentWorker<In, Out, N, Head>{table, walk.at()}, head, walk.chunk() - head.first_chunk);
  }
}

}  // namespace fastcomm
