// The loops of reduce_sums.inc for every processor.
#define FC_ISA_NAMESPACE isa_generic
#define FC_VECTOR_BYTES 16
#include "kernels/reduce_sums.inc"
