"""Modules of the package import each other in one direction, and so do its rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_Graph = dict[str, set[str]]


def _modules() -> dict[str, Path]:
    found = {}
    for path in (_ROOT / "fastcomm").rglob("*.py"):
        parts = path.relative_to(_ROOT).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield what is imported anywhere in a module, also when a function is called."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module is not None:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif not _is_for_type_checkers(child):
            yield from _imported(child)


def _graph() -> _Graph:
    modules = _modules()
    graph: _Graph = {}
    for module, path in modules.items():
        graph[module] = set()
        for name in _imported(ast.parse(path.read_text())):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name and name != module:
                graph[module].add(name)
    return graph


def _circle(graph: _Graph) -> list[str]:
    """Return a circle of the graph, or nothing."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for following in sorted(graph.get(node, ())):
            if found := walk(following, [*path, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := walk(node, []))), [])


def _rooms(graph: _Graph) -> _Graph:
    """Return the same of folders; a module beside them is a room of its own."""
    rooms: _Graph = {}
    for module, imported in graph.items():
        room = ".".join(module.split(".")[:2])
        others = {".".join(name.split(".")[:2]) for name in imported}
        rooms.setdefault(room, set()).update(others - {room})
    return rooms


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = _graph()
    assert len(graph) > 100 and any(graph.values())
    assert _circle(graph) == []


def test_no_rooms_import_each_other_in_a_circle() -> None:
    rooms = _rooms(_graph())
    assert {"fastcomm._measure", "fastcomm.bench", "fastcomm._native"} <= set(rooms)
    assert _circle(rooms) == []


def test_a_circle_is_found() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    rooms = _rooms({"p.a.one": {"p.b"}, "p.b": {"p.a.two"}, "p.a.two": set()})
    assert _circle(rooms) == ["p.a", "p.b", "p.a"]
