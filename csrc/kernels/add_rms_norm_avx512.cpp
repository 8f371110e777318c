// The loops of add_rms_norm_cpu.h for processors with AVX512.
#define FC_ISA_NAMESPACE isa_avx512
#define FC_VECTOR_BYTES 64
#include "kernels/add_rms_norm_loops.inc"
