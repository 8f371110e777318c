// The loops of reduce_cpu.h for processors with AVX512.
#define FC_ISA_NAMESPACE isa_avx512
#include "kernels/reduce_sums.inc"
