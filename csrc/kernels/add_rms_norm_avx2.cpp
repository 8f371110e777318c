// The loops of add_rms_norm_cpu.h for processors with AVX2.
#define FC_ISA_NAMESPACE isa_avx2
#define FC_VECTOR_BYTES 32
#include "kernels/add_rms_norm_loops.inc"
