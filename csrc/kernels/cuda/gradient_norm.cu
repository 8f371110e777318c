// The kernels of kernels/cuda/gradient_norm.h.
//
//   gradient_parts_kernel  a thread block joins the blocks of a segment, then those of another one
//   gradient_norm_kernel   one thread block joins the segments, if there are several
//
// Both take tiles of 2,048 neighbours: a thread loads and joins eight of them, the thread block all
// (kernels/cuda/norm_tree.h), and thread 0 joins tiles in order. Cost: each norm is read once, in
// accesses of 16 bytes of which eight are in flight; a tensor of 8 million elements is one tile.
//
// Memory ordering. Within a thread block, that of its tree; only thread 0 sees its sums of tiles.
// Nothing orders thread blocks, and no two write the same memory: the stream orders the kernels.
#include "kernels/cuda/gradient_norm.h"

#include <cstring>

#include "core/cuda_host.h"
#include "kernels/cuda/norm_tree.h"

namespace fastcomm {
namespace {

#if defined(FC_SHIM)
constexpr int kMostBlocks = 3;
#else
constexpr int kMostBlocks = 1024;
#endif

/// By one access of 16 bytes.
FC_DEVICE BlockNorm load_norm(const BlockNorm* from) {
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  BlockNorm norm;
  memcpy(static_cast<void*>(&norm), &raw, sizeof(norm));
  return norm;
}

constexpr uint32_t kNeighbours = 8;
constexpr uint32_t kTile = NormTree::kLeaves * kNeighbours;

/// A thread's norms of a tile.
struct TileNorms {
  static constexpr uint32_t kOfThread = NormTree::kLeaves / kTableThreads;
  BlockNorm norms[kOfThread][kNeighbours];

  static FC_DEVICE uint32_t leaf(uint32_t l) { return threadIdx.x + l * kTableThreads; }

  /// The tile of load(first), ..., up to load(count - 1); missing norms are zero.
  template <class Load>
  FC_DEVICE void load_tile(uint32_t first, uint32_t count, const Load& load) {
    FC_UNROLL
    for (uint32_t l = 0; l < kOfThread; ++l) {
      FC_UNROLL
      for (uint32_t i = 0; i < kNeighbours; ++i) {
        const uint32_t at = first + leaf(l) * kNeighbours + i;
        norms[l][i] = at < count ? load(at) : BlockNorm{};
      }
    }
  }

  /// Joins neighbours into leaves. Returns true if all are finite.
  template <class Join>
  FC_DEVICE bool join(const NormTree& tree) const {
    bool finite = true;
    FC_UNROLL
    for (uint32_t l = 0; l < kOfThread; ++l) {
      FC_UNROLL
      for (uint32_t i = 0; i < kNeighbours; ++i) finite &= norms[l][i].finite;
      tree.set(leaf(l),
               NormTree::joined<Join, kNeighbours>([&](uint32_t i) { return norms[l][i].part; }));
    }
    return finite;
  }
};

/// Joins load(0), ..., load(count - 1), for thread 0. `waiting` is memory for the tree over tiles.
/// A tile is loaded while the one before is joined.
template <class Join, class Load>
FC_DEVICE BlockNorm join_all(const NormTree& tree, double* waiting, uint32_t count,
                             const Load& load) {
  PartsTree<Join> tiles(waiting);
  bool finite = true;
  TileNorms tile;
  tile.load_tile(0, count, load);
  for (uint32_t first = 0; first < count; first += kTile) {
    finite &= tile.template join<Join>(tree);
    if (count - first > kTile) tile.load_tile(first + kTile, count, load);
    const double part = tree.root<Join>();
    if (threadIdx.x == 0) tiles.add(part);
  }
  finite = all_agree(finite);
  return {tiles.total(), finite};
}

template <class Load>
FC_DEVICE BlockNorm join_all(NormKind kind, const NormTree& tree, double* waiting, uint32_t count,
                             const Load& load) {
  return kind == NormKind::kInfinity ? join_all<JoinLargest>(tree, waiting, count, load)
                                     : join_all<JoinSums>(tree, waiting, count, load);
}

/// By one thread.
FC_DEVICE void write_results(NormKind kind, BlockNorm norm, const NormResults& results) {
  const double total = norm_of_sum(kind, norm.part);
  if (results.total_type == DType::kFloat64) {
    *static_cast<double*>(results.total) = total;
  } else {
    *static_cast<float*>(results.total) = static_cast<float>(total);
  }
  if (results.found_inf != nullptr) *results.found_inf = norm.finite ? 0.0f : 1.0f;
}

/// A list of one segment has its results from here.
__global__ void __launch_bounds__(kTableThreads)
    gradient_parts_kernel(NormNotes notes, uint32_t blocks, uint32_t segments, NormKind kind,
                          NormResults results) {
  FC_SHARED(double, leaves, NormTree::kPlaces);
  FC_SHARED(double, tiles, PartsTree<JoinSums>::kLevels);
  const NormTree tree(leaves);
  for (uint32_t s = blockIdx.x; s < segments; s += gridDim.x) {
    const uint32_t first = notes.first_of[s];
    const uint32_t end = s + 1 < segments ? notes.first_of[s + 1] : blocks;
    const BlockNorm norm = join_all(kind, tree, tiles, end - first, [&](uint32_t i) {
      return load_norm(&notes.blocks[first + i]);
    });
    if (threadIdx.x == 0) {
      notes.segments[s] = norm;
      results.parts[s] = norm.part;
      if (segments == 1) write_results(kind, norm, results);
    }
  }
}

/// Without notes the parts exist already, and are finite.
__global__ void __launch_bounds__(kTableThreads)
    gradient_norm_kernel(const BlockNorm* notes, uint32_t segments, NormKind kind,
                         NormResults results) {
  FC_SHARED(double, leaves, NormTree::kPlaces);
  FC_SHARED(double, tiles, PartsTree<JoinSums>::kLevels);
  const NormTree tree(leaves);
  const BlockNorm norm = join_all(kind, tree, tiles, segments, [&](uint32_t i) {
    return notes != nullptr ? load_norm(&notes[i]) : BlockNorm{results.parts[i], true};
  });
  if (threadIdx.x == 0) write_results(kind, norm, results);
}

/// The results as a kernel sees them that writes them.
NormResults view_of(const NormResults& results) {
  NormResults seen = results;
  seen.total =
      kernel_view(static_cast<char*>(results.total), dtype_size(results.total_type), Touch::kWrite);
  seen.found_inf = kernel_view(results.found_inf, sizeof(float), Touch::kWrite);
  return seen;
}

void launch_total(const BlockNorm* notes, int count, NormKind kind, const NormResults& results,
                  cudaStream_t stream) {
  NormResults seen = view_of(results);
  const auto bytes = static_cast<uint64_t>(count);
  if (notes != nullptr) {
    notes = kernel_view(notes, bytes * sizeof(BlockNorm), Touch::kRead);
  } else {
    seen.parts = kernel_view(results.parts, bytes * sizeof(double), Touch::kRead);
  }
  FC_CUDA(FC_LAUNCH(gradient_norm_kernel, dim3(1), dim3(kTableThreads), stream, notes,
                    static_cast<uint32_t>(count), kind, seen),
          "the norm of ", count, " gradients");
}

}  // namespace

uint64_t norm_notes_bytes(uint64_t blocks, int segments) {
  const auto count = static_cast<uint64_t>(segments);
  return (blocks + count) * sizeof(BlockNorm) + count * sizeof(uint32_t);
}

NormNotes norm_notes_at(void* memory, uint64_t blocks, int segments) {
  auto* const norms = static_cast<BlockNorm*>(memory);
  return {norms, norms + blocks, reinterpret_cast<uint32_t*>(norms + blocks + segments)};
}

void launch_gradient_norm(const NormNotes& notes, uint32_t blocks, int segments, NormKind kind,
                          const NormResults& results, cudaStream_t stream) {
  if (segments != 0) {
    const int grid = segments < kMostBlocks ? segments : kMostBlocks;
    const auto count = static_cast<uint64_t>(segments);
    const NormNotes seen{kernel_view(notes.blocks, blocks * sizeof(BlockNorm), Touch::kRead),
                         kernel_view(notes.segments, count * sizeof(BlockNorm), Touch::kWrite),
                         kernel_view(notes.first_of, count * sizeof(uint32_t), Touch::kRead)};
    NormResults written = segments == 1 ? view_of(results) : results;
    written.parts = kernel_view(results.parts, count * sizeof(double), Touch::kWrite);
    FC_CUDA(FC_LAUNCH(gradient_parts_kernel, dim3(grid), dim3(kTableThreads), stream, seen, blocks,
                      static_cast<uint32_t>(segments), kind, written),
            "the norms of ", segments, " gradients");
  }
  if (segments == 1) return;
  launch_total(notes.segments, segments, kind, results, stream);
}

void load_gradient_norm() {
  cudaFuncAttributes attributes;
  FC_CUDA(cudaFuncGetAttributes(&attributes, gradient_parts_kernel), "the kernel of norms");
  FC_CUDA(cudaFuncGetAttributes(&attributes, gradient_norm_kernel), "the kernel of norms");
}

void launch_norm_of_parts(const double* parts, int count, NormKind kind, double* total,
                          cudaStream_t stream) {
  const NormResults results{const_cast<double*>(parts), total, DType::kFloat64, nullptr};
  launch_total(nullptr, count, kind, results, stream);
}

}  // namespace fastcomm
