// Choice among the sets of the CPU's loops: the widest instructions of the processor, or the set
// named by FASTCOMM_ISA=generic|avx2|avx512.
//
// Each set is compiled in translation units and a namespace of its own (*_generic.cpp, *_avx2.cpp,
// *_avx512.cpp): inline functions compiled with wider instructions must not be merged by the linker
// with those that run everywhere. All sets give the same bits.
#pragma once

namespace fastcomm {

enum class Isa { kGeneric, kAvx2, kAvx512 };

/// Raises Error(kInvalidArgument) if FASTCOMM_ISA names a set that this processor or this build
/// lacks.
Isa chosen_isa();

/// "generic", "avx2" or "avx512".
const char* isa_name();

}  // namespace fastcomm

/// Declares `signature`, a function of every set that this build has, in the namespaces of the
/// sets.
#if defined(FC_HAVE_AVX2)
#define FC_DECLARE_AVX2(signature) \
  namespace isa_avx2 {             \
  signature;                       \
  }
#define FC_AVX2_OR(name, other) isa_avx2::name
#else
#define FC_DECLARE_AVX2(signature)
#define FC_AVX2_OR(name, other) other
#endif
#if defined(FC_HAVE_AVX512)
#define FC_DECLARE_AVX512(signature) \
  namespace isa_avx512 {             \
  signature;                         \
  }
#define FC_AVX512_OR(name, other) isa_avx512::name
#else
#define FC_DECLARE_AVX512(signature)
#define FC_AVX512_OR(name, other) other
#endif
#define FC_DECLARE_FOR_EVERY_ISA(signature) \
  namespace isa_generic {                   \
  signature;                                \
  }                                         \
  FC_DECLARE_AVX2(signature)                \
  FC_DECLARE_AVX512(signature)

/// The function `name` of the chosen set.
#define FC_OF_CHOSEN_ISA(name)                                          \
  (chosen_isa() == Isa::kAvx512 ? FC_AVX512_OR(name, isa_generic::name) \
   : chosen_isa() == Isa::kAvx2 ? FC_AVX2_OR(name, isa_generic::name)   \
                                : isa_generic::name)
