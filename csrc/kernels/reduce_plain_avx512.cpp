// The loops of reduce_plain.inc for processors with AVX512.
#define FC_ISA_NAMESPACE isa_avx512
#include "kernels/reduce_plain.inc"
