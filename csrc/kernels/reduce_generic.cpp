// The loops of reduce_cpu.h for every processor.
#define FC_ISA_NAMESPACE isa_generic
#include "kernels/reduce_sums.inc"
