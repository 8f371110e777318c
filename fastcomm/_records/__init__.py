"""Records of calls, read from outside: no native library, and no torch.

Each process that has a group writes what it calls into a file in memory (csrc/core/records.h).
Whoever may look into the process can read that, whatever state the process is in.
"""
