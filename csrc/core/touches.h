// What device code says of the memory that it uses: FC_TOUCHES(pointer, bytes, write), called by all
// threads of a block with the same arguments, before a barrier of the block or the kernel's end.
//
// Under the execution shim it is looked at, there and then, whether flags and barriers order the use
// with those of other processes (core/shim/shared_memory.h); for memory of one process it does
// nothing. In every other build it is nothing.
#pragma once

#if defined(FC_SHIM)
#include "core/shim/shared_memory.h"
#define FC_TOUCHES(pointer, bytes, write) ::fastcomm::shim::touches(pointer, bytes, write)
#else
#define FC_TOUCHES(pointer, bytes, write) ((void)0)
#endif
