"""A text for Prometheus: written into a file, or given to who asks by HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

from fastcomm._records.exposition import CONTENT_TYPE


def address(text: str) -> tuple[str, int] | None:
    """Return the host and port of PORT or HOST:PORT; None for anything else, a file's name."""
    host, _, port = text.rpartition(":")
    if not (port.isdecimal() and int(port) < 2**16) or "/" in host:
        return None
    return host or "127.0.0.1", int(port)


def write(path: str, text: str) -> None:
    """Write a file at once: who reads it sees all of the old text, or all of the new one."""
    new = f"{path}.{os.getpid()}.tmp"
    try:
        with open(new, "x") as file:
            file.write(text)
        os.replace(new, path)
    except BaseException:
        if os.path.exists(new):
            os.unlink(new)
        raise


def server(where: tuple[str, int], text: Callable[[], str]) -> HTTPServer:
    """Return a server that answers GET /metrics with the text of that moment."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 5.0  # seconds: one who asks and says no more keeps others waiting as long

        def do_GET(self) -> None:
            """Answer."""
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                self.send_error(404)
                return
            try:
                body = text().encode()
            except OSError as error:
                self.send_error(500, str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing of each request."""

    return HTTPServer(where, Handler)
