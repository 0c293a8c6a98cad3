"""What all source keeps to: imports point one way, up the table of docs/design.md, and names say what they hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "galton"
FRAMEWORKS = {"torch", "opacus", "optax"}
"""Only adapters may import these."""
ADAPTERS = {"galton.training.jax", "galton.training.torch", "galton.training.opacus"}
ADAPTER_PARTS = {
    *("galton.training.torch_batches", "galton.training.torch_clipping", "galton.training.torch_optimizer"),
    *("galton.training.torch_processes", "galton.training.torch_sharded"),
    *("galton.training.torch_ghost", "galton.training.torch_ghost_layers"),
    *("galton.training.torch_workers", "galton.training.opacus_batches", "galton.training.opacus_accountant"),
    "galton.training.opacus_optimizer",
}
FOLDERS = ["src", "tests", "reproduction", "benchmarks", "examples"]
"""All that is ours in Python."""
SAY_NOTHING = {"one", "found"}


def parts() -> list[str]:
    """Packages and modules in the order of docs/design.md: a row of its first table may name several, in order."""
    text = (ROOT / "docs" / "design.md").read_text()
    table = text.split("| package or module |", 1)[1].split("\n\n", 1)[0]
    cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    return [name.removesuffix("/") for cell in cells for name in re.findall(r"`([a-z_/]+)`", cell)]


def modules() -> dict[str, Path]:
    paths = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


MODULES = modules()


def running(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker looks at."""
    yield node
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        children = list(node.orelse)
    for child in children:
        yield from running(child)


def imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports, at its top or inside functions."""
    names: set[str] = set()
    for node in running(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            within = members & set(MODULES)
            names |= within if within == members else within | {node.module}
    return names


def part_of(module: str) -> str:
    return module.split(".")[1]


def test_the_table_names_every_part_once() -> None:
    named = parts()
    assert len(named) == len(set(named))
    assert set(named) == {part_of(module) for module in MODULES if module != "galton"}


@pytest.mark.parametrize("module", [name for name in MODULES if name != "galton"])
def test_imports_point_up_the_table(module: str) -> None:
    order = parts()
    for imported in imports(MODULES[module]):
        if not imported.startswith("galton"):
            continue
        assert imported != "galton", f"{module} imports from the public surface; import from where the name is defined"
        allowed = order[: order.index(part_of(module)) + 1]
        assert part_of(imported) in allowed, f"{module} imports {imported}, which is further down"


def test_no_module_imports_itself_by_a_detour() -> None:
    graph = {name: imports(path) & set(MODULES) - {name} for name, path in MODULES.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for imported in sorted(graph[name]):
                visit(imported, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("module", sorted(set(MODULES) - ADAPTERS - ADAPTER_PARTS))
def test_only_adapters_import_a_training_framework(module: str) -> None:
    assert not {name.partition(".")[0] for name in imports(MODULES[module])} & FRAMEWORKS


def test_nothing_imports_the_reproduction() -> None:
    for module, path in MODULES.items():
        assert not any(name.partition(".")[0] == "reproduction" for name in imports(path)), module


def given_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """All names that code gives to something or passes by keyword, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield node.lineno, name


@pytest.mark.parametrize(
    "code",
    [
        "one = 1",
        "one: int = 1",
        "two, one = 1, 2",
        "[one.loss for one in draws]",
        "f'{one}'",
        "(one := 1)",
        "self.one = 1",
        "def one(): ...",
        "async def one(): ...",
        "class one: ...",
        "def f(one): ...",
        "def f(*one): ...",
        "lambda *, one: 1",
        "f(one=1)",
        "with f() as one: ...",
        "try: ...\nexcept E as one: ...",
        "import a as one",
        "from a import b as one",
        "match a:\n    case one: ...",
        "match a:\n    case [*one]: ...",
        "match a:\n    case {**one}: ...",
    ],
)
def test_every_way_to_give_a_name_is_seen(code: str) -> None:
    assert "one" in {name for _, name in given_names(ast.parse(code))}


def test_words_and_attributes_of_others_are_not_names_that_are_given() -> None:
    code = '"""One of many: one."""\nresult = other.one  # the one\nf(**options)'
    assert {name for _, name in given_names(ast.parse(code))} == {"result", "other", "f", "options"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_say_what_they_hold(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    offenders = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in paths
        for line, name in given_names(ast.parse(path.read_bytes()))
        if name in SAY_NOTHING
    ]
    assert offenders == []
