// The loops of reduce_plain.inc for every processor.
#define FC_ISA_NAMESPACE isa_generic
#include "kernels/reduce_plain.inc"
