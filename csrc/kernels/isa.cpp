#include "kernels/isa.h"

#include <string>

#include "core/env.h"
#include "core/error.h"

namespace fastcomm {
namespace {

Isa choose() {
  const std::string& wanted = environment().isa;
#if defined(FC_HAVE_AVX512)
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512 && (wanted == "auto" || wanted == "avx512")) return Isa::kAvx512;
#endif
#if defined(FC_HAVE_AVX2)
  if (__builtin_cpu_supports("avx2") && (wanted == "auto" || wanted == "avx2")) return Isa::kAvx2;
#endif
  FC_CHECK(wanted == "auto" || wanted == "generic", "FASTCOMM_ISA=", wanted,
           ": this processor or this build does not have it; leave the variable unset");
  return Isa::kGeneric;
}

}  // namespace

Isa chosen_isa() {
  static const Isa chosen = choose();
  return chosen;
}

const char* isa_name() {
  constexpr const char* kNames[] = {"generic", "avx2", "avx512"};
  return kNames[static_cast<int>(chosen_isa())];
}

}  // namespace fastcomm
