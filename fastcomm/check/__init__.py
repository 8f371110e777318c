"""``fastcomm check``: does fastcomm work on this machine?

Every path that the machine offers is taken by ranks of its own, which compare each result with
what it has to be, element by element, and time it beside a stock backend. A path that is wrong,
fails or is missing is reported as such, with the reason.

Layers: paths (what there is to try) -> checker (how ranks agree on a verdict) -> results, speeds
(what is looked at) -> ranks (all of it, on one path) -> run (all paths, in turn) -> report, plot
(the outcome) -> cli.
"""

from fastcomm.check.paths import Path
from fastcomm.check.run import Options, run

__all__ = ["Options", "Path", "run"]
