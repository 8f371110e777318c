// The only place that depends on torch's version (2.11 to 2.15).
//
// The backend overrides the old names of the virtual functions (_allgather_base,
// _reduce_scatter_base, alltoall_base, ...): 2.14 calls them through its new names, and older
// versions know no others. The supplement of PREMUL_SUM has another name in 2.11 and 2.12.
#pragma once

#include <torch/version.h>

#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11
#error "fastcomm needs torch 2.11 or later: pip install 'torch>=2.11'"
#endif

namespace fastcomm {

/// Names of torch's variable for dumps of its flight recorder on failure; the first one is current.
inline const std::vector<std::string>& dump_on_failure_variables() {
#if TORCH_VERSION_MINOR >= 15
  static const std::vector<std::string> names{"TORCH_FR_DUMP_ON_TIMEOUT",
                                              "TORCH_NCCL_DUMP_ON_TIMEOUT"};
#else
  static const std::vector<std::string> names{"TORCH_NCCL_DUMP_ON_TIMEOUT"};
#endif
  return names;
}

/// The old name; newer versions keep it.
using PremulSumSupplement = ::c10d::NCCLPreMulSumSupplement;

}  // namespace fastcomm
