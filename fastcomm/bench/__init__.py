"""Benchmark harness for collectives of ``torch.distributed``, shipped with the package.

``fastcomm bench`` measures operations over several backends, interleaved in one run.
The modules, from the bottom up: `units` and `stats` are arithmetic; `environment` and `records`
describe and store a run; `launch` starts and supervises ranks; `cases` holds one entry for each
operation; `timing` measures one of them; `sweep` walks over operations and sizes; `hosts` measures
a job on several hosts, with `links` and `levels`; `table`, `plot` and `compare` show results; `cli`
is the command line.

Needs the packages of the extra ``fastcomm[bench]`` (tabulate, tqdm, matplotlib).  Nothing heavy is
imported here.
"""
