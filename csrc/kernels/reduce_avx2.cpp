// The loops of reduce_sums.inc for processors with AVX2.
#define FC_ISA_NAMESPACE isa_avx2
#define FC_VECTOR_BYTES 32
#include "kernels/reduce_sums.inc"
