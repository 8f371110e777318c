// The loops of reduce_sums.inc for processors with AVX512.
#define FC_ISA_NAMESPACE isa_avx512
#define FC_VECTOR_BYTES 64
#include "kernels/reduce_sums.inc"
