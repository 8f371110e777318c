// Statements of device code about the memory that it is about to use:
//
//   FC_TOUCHES(pointer, bytes, write)         by the block, between two of its barriers: called by
//                                             all threads with the same arguments
//   FC_THREAD_TOUCHES(pointer, bytes, write)  by the calling thread alone
//
// The execution shim checks at once that flags and barriers order the use with those of other
// processes (shim/shared_memory.h); for memory of one process it does nothing. In every other build
// these macros are empty.
#pragma once

#if defined(FC_SHIM)
#include "shim/shared_memory.h"
#define FC_TOUCHES(pointer, bytes, write) ::fastcomm::shim::touches(pointer, bytes, write)
#define FC_THREAD_TOUCHES(pointer, bytes, write) \
  ::fastcomm::shim::touches(pointer, bytes, write, /*alone=*/true)
#else
#define FC_TOUCHES(pointer, bytes, write) ((void)0)
#define FC_THREAD_TOUCHES(pointer, bytes, write) ((void)0)
#endif
