// The kernels of engines/cuda/all_reduce.h and the one place that chooses among them.
//
// Also compiled for the host, under the execution shim (FC_SHIM).
#include "engines/cuda/all_reduce.h"

#include <limits>

#include "coll/all_reduce.h"
#include "core/error.h"
#include "core/numeric.h"
#include "kernels/cuda/residency.h"
#include "kernels/span_cuda.h"

namespace fastcomm {
namespace {

/// The peers' pointers are indexed at run time, so they must stay in parameter space: a copy would
/// lie in local memory. Schedule and executor hold references, and scalars of their own.
template <class Schedule, class T, int N>
__global__ void __launch_bounds__(kCudaThreads, 1)
    all_reduce_kernel(const __grid_constant__ CudaAllReduceArgs args) {
  const int channel = static_cast<int>(blockIdx.x);
  const ChannelState state = args.states[channel];
  if (state.failed != 0) return;

  const Span part =
      slice_of(args.count, static_cast<int>(gridDim.x), channel, kLineBytes / sizeof(T));
  ScratchLayout layout = args.layout;
  layout.origin += static_cast<uint64_t>(channel) * layout.total();
  const Schedule schedule{AllReduceArgs{args.peers, layout, args.input + part.first * sizeof(T),
                                        args.output + part.first * sizeof(T), part.count, sizeof(T),
                                        args.block_bytes / sizeof(T), state.operations}};
  CudaExecutor<T, N> executor(args.peers, args.bounds, channel, state, args.records + channel,
                              args.average);
  const bool done = run_all(schedule, executor, state.base);

  // Every thread has read the state: each schedule has a barrier.
  if (threadIdx.x == 0) {
    args.states[channel] =
        ChannelState{state.base + schedule.steps() - 1, state.operations + 1, done ? 0u : 1u};
  }
}

using Kernel = void (*)(CudaAllReduceArgs);

template <class T, int N>
Kernel kernel_for_schedule(bool one_shot) {
  return one_shot ? all_reduce_kernel<AllReduceOneShot, T, N>
                  : all_reduce_kernel<AllReduceTwoShot, T, N>;
}

/// One kernel for every number of ranks. nullptr: too many.
template <class T>
Kernel kernel_for_any_size(int size, bool one_shot) {
  return size >= 2 && size <= kMaxCudaRanks ? kernel_for_schedule<T, 0>(one_shot) : nullptr;
}

/// For what gradients are made of: kernels of their own for few ranks.
template <class T>
Kernel kernel_for_size(int size, bool one_shot) {
  switch (size) {
    case 2:
      return kernel_for_schedule<T, 2>(one_shot);
    case 4:
      return kernel_for_schedule<T, 4>(one_shot);
#if !defined(FC_FEW_KERNELS)  // tests that are not about the sums compile faster
    case 3:
      return kernel_for_schedule<T, 3>(one_shot);
    case 5:
      return kernel_for_schedule<T, 5>(one_shot);
    case 6:
      return kernel_for_schedule<T, 6>(one_shot);
    case 7:
      return kernel_for_schedule<T, 7>(one_shot);
    case 8:
      return kernel_for_schedule<T, 8>(one_shot);
#endif
    default:
      return kernel_for_any_size<T>(size, one_shot);
  }
}

/// nullptr: no kernel.
Kernel kernel_for(DType dtype, int size, bool one_shot) {
  switch (dtype) {
    case DType::kFloat32:
      return kernel_for_size<float>(size, one_shot);
    case DType::kBFloat16:
      return kernel_for_size<BFloat16>(size, one_shot);
#if !defined(FC_FEW_KERNELS)
    case DType::kFloat16:
      return kernel_for_size<Half>(size, one_shot);
    case DType::kFloat64:
      return kernel_for_any_size<double>(size, one_shot);
    case DType::kInt8:
      return kernel_for_any_size<int8_t>(size, one_shot);
    case DType::kUInt8:
      return kernel_for_any_size<uint8_t>(size, one_shot);
    case DType::kInt16:
      return kernel_for_any_size<int16_t>(size, one_shot);
    case DType::kInt32:
      return kernel_for_any_size<int32_t>(size, one_shot);
    case DType::kInt64:
      return kernel_for_any_size<int64_t>(size, one_shot);
    case DType::kBool:
      return kernel_for_any_size<Bool>(size, one_shot);
#endif
    default:
      return nullptr;
  }
}

void check_arguments(const CudaAllReduceArgs& args, const CudaLaunch& launch) {
  FC_CHECK(launch.channels >= 1 && launch.channels <= launch.max_channels,
           "all_reduce: ", launch.channels, " channels, but 1 to ", launch.max_channels,
           " are resident at once");
  FC_CHECK(launch.threads >= 1 && launch.threads <= kCudaThreads, "all_reduce: blocks of ",
           launch.threads, " threads, but 1 to ", kCudaThreads, " are possible");
  const uint64_t element = dtype_size(launch.dtype);
  const uint64_t line = kLineBytes / element;
  const ScratchLayout& layout = args.layout;
  FC_CHECK((address_of(args.input) | address_of(args.output)) % element == 0,
           "all_reduce: input or output is not aligned to ", dtype_name(launch.dtype));
  FC_CHECK((layout.origin | layout.payload_bytes | layout.block_bytes | layout.result_bytes) %
                   kLineBytes ==
               0,
           "all_reduce: slots must be multiples of ", kLineBytes, " bytes");
  if (launch.one_shot) {
    const uint64_t part = slice_elements(args.count, launch.channels, line) * element;
    FC_CHECK(part <= layout.payload_bytes, "all_reduce: ", part,
             " bytes of a channel do not fit its payload slot of ", layout.payload_bytes);
    return;
  }
  FC_CHECK(args.block_bytes > 0 && args.block_bytes % kLineBytes == 0 &&
               args.block_bytes <= layout.block_bytes,
           "all_reduce: blocks of ", args.block_bytes, " bytes, stage slots of ",
           layout.block_bytes);
  const uint64_t slice =
      slice_elements(args.block_bytes / element, args.peers.size, line) * element;
  FC_CHECK(slice <= layout.result_bytes, "all_reduce: slices of ", slice,
           " bytes, result slots of ", layout.result_bytes);
}

}  // namespace

void launch_all_reduce(const CudaAllReduceArgs& args, const CudaLaunch& launch,
                       cudaStream_t stream) {
  check_arguments(args, launch);
  const Kernel kernel = kernel_for(launch.dtype, args.peers.size, launch.one_shot);
  if (kernel == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                concat("all_reduce: no CUDA kernel for ", dtype_name(launch.dtype), " over ",
                       args.peers.size, " ranks (2 to ", kMaxCudaRanks, ")"));
  }
  FC_CUDA(FC_LAUNCH(kernel, dim3(launch.channels), dim3(launch.threads), stream, args),
          "all_reduce over ", args.peers.size, " ranks");
}

int max_all_reduce_channels(int ranks, int threads, int sharing) {
  int channels = std::numeric_limits<int>::max();
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    for (const bool one_shot : {true, false}) {
      const Kernel kernel = kernel_for(static_cast<DType>(dtype), ranks, one_shot);
      if (kernel == nullptr) continue;
      cudaFuncAttributes attributes;
      FC_CUDA(cudaFuncGetAttributes(&attributes, kernel), "all_reduce over ", ranks, " ranks");
      const int resident = resident_blocks(kernel, threads) / sharing;
      channels = resident < channels ? resident : channels;
    }
  }
  FC_CHECK(channels != std::numeric_limits<int>::max(), "all_reduce: no CUDA kernels for ", ranks,
           " ranks");
  return channels;
}

}  // namespace fastcomm
