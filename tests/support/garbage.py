"""Cycles of references that a call leaves for the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable

TRIES = 3


def garbage_of(call: Callable[[], object]) -> list[object]:
    """Return what is in cycles that ``call`` leaves each time: the shortest list of a few tries.

    Earlier objects are hidden from the collector meanwhile, since earlier tests leave garbage, too;
    what their threads leave in between is not there every time.
    """
    tries = []
    for _ in range(TRIES):
        gc.disable()
        gc.freeze()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            call()
            gc.collect()
            tries.append(list(gc.garbage))
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.unfreeze()
            gc.enable()
        if not tries[-1]:
            break
    return min(tries, key=len)
