#include "kernels/reduce_cpu.h"

#include <string>

#include "core/env.h"
#include "core/error.h"

namespace fastcomm {

namespace isa_generic {
ReduceFunction reduce_function(DType dtype);
}
#if defined(FC_HAVE_AVX2)
namespace isa_avx2 {
ReduceFunction reduce_function(DType dtype);
}
#endif
#if defined(FC_HAVE_AVX512)
namespace isa_avx512 {
ReduceFunction reduce_function(DType dtype);
}
#endif

namespace {

struct Isa {
  const char* name;
  ReduceFunction (*lookup)(DType);
};

Isa choose() {
  const std::string& wanted = environment().isa;
#if defined(FC_HAVE_AVX512)
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512 && (wanted == "auto" || wanted == "avx512")) {
    return {"avx512", isa_avx512::reduce_function};
  }
#endif
#if defined(FC_HAVE_AVX2)
  if (__builtin_cpu_supports("avx2") && (wanted == "auto" || wanted == "avx2")) {
    return {"avx2", isa_avx2::reduce_function};
  }
#endif
  FC_CHECK(wanted == "auto" || wanted == "generic", "FASTCOMM_ISA=", wanted,
           ": this processor or this build does not have it; leave the variable unset");
  return {"generic", isa_generic::reduce_function};
}

const Isa& isa() {
  static const Isa chosen = choose();
  return chosen;
}

}  // namespace

ReduceFunction reduce_function(DType dtype) {
  const ReduceFunction function = isa().lookup(dtype);
  if (function == nullptr) {
    throw Error(ErrorCode::kUnsupported, concat("no reduction for dtype ", dtype_name(dtype)));
  }
  return function;
}

const char* reduce_isa() { return isa().name; }

}  // namespace fastcomm
