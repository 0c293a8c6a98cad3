"""The code that a module depends on: its own source and that of all it imports, found without running it."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path

from galton.errors import InvalidArgument

ROOT = "galton"
"""This package. Its own `__init__` is not followed: it is a lazy table of public names that no code here uses."""


@cache
def code_digest(*modules: str) -> str:
    """Returns a hash of the code that these modules depend on; a result is stale once the hash changes.

    It covers what they import, directly or not, from galton and from the packages that they are in.

    Args:
      modules: full names, such as `__name__`.
    """
    packages = {name: _package_folder(name) for name in (ROOT, *(module.partition(".")[0] for module in modules))}
    files = {name: path for module in modules for name, path in closure(module, packages).items()}
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(name.encode() + b"\0" + files[name].read_bytes() + b"\0")
    return total.hexdigest()


def closure(module: str, packages: Mapping[str, Path]) -> dict[str, Path]:
    """Returns the source files of a module and of all that it imports, directly or not, by the names of the modules.

    An import inside a function counts; an import for type checkers only does not. A package that is imported, or
    imported from, stands for its `__init__`.

    Args:
      module: where to begin.
      packages: folders of the packages to follow, by name; other imports are left alone.
    """
    start = _source_file(module, packages)
    if start is None:
        raise InvalidArgument("module", module, "must be a module with a source file in " + ", ".join(packages))
    files, waiting = {module: start}, [module]
    while waiting:
        name = waiting.pop()
        package = name if files[name].name == "__init__.py" else name.rpartition(".")[0]
        for imported in _imported_names(files[name].read_bytes(), package):
            path = _source_file(imported, packages)
            if path is not None and imported not in files and imported != ROOT:
                files[imported] = path
                waiting.append(imported)
    return files


def _package_folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InvalidArgument("module", package, "must be in a package")
    return Path(next(iter(spec.submodule_search_locations)))


def _source_file(module: str, packages: Mapping[str, Path]) -> Path | None:
    """The source file of a module; None if it is in none of these packages, or is no module at all."""
    package, *parts = module.split(".")
    if package not in packages:
        return None
    place = packages[package].joinpath(*parts)
    candidates = (place / "__init__.py", place.parent / f"{place.name}.py")
    return next((path for path in candidates[: 2 if parts else 1] if path.is_file()), None)


@cache
def _imported_names(source: bytes, package: str) -> tuple[str, ...]:
    """Names that may be modules: what a source file of this package imports, and where it imports it from."""
    names: list[str] = []
    for node in _runtime_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            names += [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
    return tuple(names)


def _runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes except those that only a type checker sees."""
    yield node
    children = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        children = iter(node.orelse)
    for child in children:
        yield from _runtime_nodes(child)
