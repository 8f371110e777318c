// What is measured by cuda_kernels.cu: calls of the batched kernels, and plain copies beside them,
// each at another place of the memory than the call before. tests/cpp/benchmark_calls_test.cpp runs
// them on the host under the execution shim.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/types.h"
#include "cuda_memory.h"
#include "kernels/cuda/multi_copy.h"
#include "kernels/cuda/multi_gradient.h"
#include "kernels/cuda/multi_reduce.h"

namespace fastcomm::benchmarks {

constexpr uint64_t kGap = 256;  // between tensors: room for shifts
constexpr uint64_t kScratchBytes = uint64_t{64} << 20;
constexpr int kManySegments = 160;  // as ResNet-50 has

/// Random memory that calls move through, each taking what follows the one before.
class Walk {
 public:
  Walk(uint64_t bytes, uint32_t seed) : memory_(random_memory(bytes, seed)), bytes_(bytes) {}

  char* take(uint64_t bytes) {
    if (next_ + bytes > bytes_) next_ = 0;
    char* const here = begin() + next_;
    next_ += (bytes + kGap - 1) / kGap * kGap;
    return here;
  }
  char* begin() const { return memory_.get(); }
  uint64_t bytes() const { return bytes_; }

 private:
  Memory memory_;
  uint64_t bytes_;
  uint64_t next_ = 0;
};

struct Method {
  std::string name;
  int sources;
  std::string dtype;
  std::string layout;
  int segments;
  uint64_t bytes;  // of one source
  uint64_t moved;
  std::function<void()> call;
  std::vector<double> us = {};
};

struct Device {
  Walk from, to;
  cudaStream_t stream;
  // What launch_multi_gradient needs besides, for the largest of all calls.
  Memory scratch = random_memory(kScratchBytes, 3);
  Memory results = random_memory(uint64_t{1} << 20, 4);
};

/// Tables for one call at places that move on with each.
class Tables {
 public:
  Tables(Device& device, int sources, bool written, DType dtype, bool differing, int segments,
         uint64_t bytes)
      : device_(device),
        sources_(sources),
        written_(written),
        element_(dtype_size(dtype)),
        differing_(differing),
        stride_((bytes / segments + kGap - 1) / kGap * kGap + kGap),
        count_(bytes / segments / element_),
        from_(static_cast<size_t>(segments) * sources),
        to_(segments),
        segments_(segments) {
    for (int i = 0; i < segments; ++i) {
      segments_[i] = {&from_[static_cast<size_t>(i) * sources], &to_[i], count_};
    }
  }

  const std::vector<ReduceSegment>& next() {
    const uint64_t whole = stride_ * segments_.size();
    for (int j = 0; j < sources_; ++j) {
      char* const source = device_.from.take(whole) + shift(j);
      for (size_t i = 0; i < segments_.size(); ++i) from_[i * sources_ + j] = source + i * stride_;
    }
    char* const to = written_ ? device_.to.take(whole) + shift(sources_) : nullptr;
    for (size_t i = 0; i < segments_.size(); ++i) to_[i] = to + (written_ ? i * stride_ : 0);
    return segments_;
  }
  uint64_t moved() const {
    return count_ * element_ * segments_.size() * (sources_ + (written_ ? 1 : 0));
  }

 private:
  uint64_t shift(int j) const { return differing_ ? static_cast<uint64_t>(j % 4) * element_ : 0; }

  Device& device_;
  int sources_;
  bool written_;
  uint64_t element_;
  bool differing_;
  uint64_t stride_;
  uint64_t count_;
  std::vector<const void*> from_;
  std::vector<void*> to_;
  std::vector<ReduceSegment> segments_;
};

/// A plain copy of `bytes`, which moves twice as many.
inline Method plain_copy(Device& device, uint64_t bytes) {
  const auto call = [&device, bytes] {
    must(cudaMemcpyAsync(device.to.take(bytes), device.from.take(bytes), bytes, cudaMemcpyDefault,
                         device.stream),
         "cudaMemcpyAsync");
  };
  return {"memcpy", 1, "bytes", "aligned", 1, bytes, 2 * bytes, call};
}

inline Method batched_copy(Device& device, uint64_t bytes, uint64_t shift, int segments) {
  const uint64_t stride = bytes / segments / kGap * kGap;
  const uint64_t each = stride - kGap;
  const auto copies = std::make_shared<std::vector<CopySegment>>(segments);
  const auto call = [&device, copies, stride, each, shift, segments] {
    char* const from = device.from.take(stride * segments) + shift;
    char* const to = device.to.take(stride * segments);
    for (int i = 0; i < segments; ++i) {
      (*copies)[i] = {to + i * stride, from + i * stride, each};
    }
    launch_multi_copy(copies->data(), segments, device.stream);
  };
  return {"multi_copy",        1,   "bytes", shift == 0 ? "aligned" : "differing", segments, bytes,
          2 * each * segments, call};
}

inline Method reduction(Device& device, uint64_t bytes, int sources, DType dtype, bool differing) {
  const auto tables = std::make_shared<Tables>(device, sources, true, dtype, differing, 1, bytes);
  const ReduceSpec spec{dtype, dtype, sources, 1};
  const auto call = [&device, tables, spec] {
    launch_multi_reduce(tables->next().data(), 1, spec, device.stream);
  };
  return {
      "multi_reduce",  sources, dtype_name(dtype), differing ? "differing" : "aligned", 1, bytes,
      tables->moved(), call};
}

/// Gradients reduced with their norm; nothing but the norm where there is one source.
inline Method gradients(Device& device, uint64_t bytes, int sources, DType dtype, DType wire,
                        int segments) {
  const bool written = sources > 1;
  const auto tables =
      std::make_shared<Tables>(device, sources, written, dtype, false, segments, bytes);
  const GradientReduceSpec spec{sources, written ? 1 : 0, sources, written ? 0.5 : 1};
  const auto list = std::make_shared<std::vector<GradientSegment>>(segments);
  const auto call = [&device, tables, list, spec, dtype, wire] {
    const std::vector<ReduceSegment>& next = tables->next();
    for (size_t i = 0; i < next.size(); ++i) (*list)[i] = {next[i], dtype, wire};
    char* const results = device.results.get();
    auto* const parts = reinterpret_cast<double*>(results) + 2;
    const NormResults into{parts, results, DType::kFloat32,
                           reinterpret_cast<float*>(results + sizeof(double))};
    launch_multi_gradient(list->data(), static_cast<int>(list->size()), spec, device.scratch.get(),
                          into, device.stream);
  };
  std::string types = dtype_name(dtype);
  if (wire != dtype) types += std::string("/") + dtype_name(wire);
  for (size_t i = 0; i < list->size(); ++i) (*list)[i] = {tables->next()[i], dtype, wire};
  if (gradient_scratch_bytes(list->data(), segments) > kScratchBytes) {
    std::fprintf(stderr, "%llu bytes of gradients need more than 64 MiB of scratch memory\n",
                 static_cast<unsigned long long>(bytes));
    std::exit(1);
  }
  return {written ? "multi_gradient" : "gradient_norm",
          sources,
          types,
          "aligned",
          segments,
          bytes,
          tables->moved(),
          call};
}

/// All that is measured at a size: what one source holds.
inline std::vector<Method> methods_for(Device& device, uint64_t bytes) {
  std::vector<Method> methods;
  for (const int segments : {1, kManySegments}) {
    for (const uint64_t shift : {0, 3}) {
      methods.push_back(batched_copy(device, bytes, shift, segments));
    }
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16}) {
      methods.push_back(reduction(device, bytes, n, dtype, false));
    }
    for (const int n : {2, 3, 4, 8, 16}) {
      methods.push_back(reduction(device, bytes, n, dtype, true));
    }
  }
  const std::pair<DType, DType> kinds[] = {{DType::kFloat32, DType::kFloat32},
                                           {DType::kBFloat16, DType::kBFloat16},
                                           {DType::kFloat32, DType::kBFloat16}};
  for (const int segments : {1, kManySegments}) {
    for (const auto& [dtype, wire] : kinds) {
      if (dtype == wire) methods.push_back(gradients(device, bytes, 1, dtype, wire, segments));
      for (const int n : {2, 4, 8}) {
        methods.push_back(gradients(device, bytes, n, dtype, wire, segments));
      }
    }
  }
  return methods;
}

}  // namespace fastcomm::benchmarks
