// The loops of add_rms_norm_cpu.h for every processor.
#define FC_ISA_NAMESPACE isa_generic
#define FC_VECTOR_BYTES 16
#include "kernels/add_rms_norm_loops.inc"
