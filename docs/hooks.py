"""What MkDocs does on the way to the site: formulas, links that leave it, the commands' help, the explorer's page."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
_OUTSIDE = re.compile(r"(!?)\[([^\]]+)\]\((?:\.\./)+((?:benchmarks|reproduction|examples|src|tests)/[^)\s]*)\)")
_SIZED_NAMES = re.compile(r"\\[Bb]igg?(?=\\)")
COMMANDS = "<!-- help of every command -->"
SCHEMAS = "<!-- fields of every schema -->"
EXPLORER = "<!-- link to the explorer -->"
EXPLORER_PAGE = "explorer.html"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turns links that leave docs/ into names of files in the checkout, and fills in the help of the commands."""
    markdown = _OUTSIDE.sub(lambda link: "" if link[1] else f"{link[2]} (`{link[3]}`)", markdown)
    for marker, fill in ((COMMANDS, _commands), (SCHEMAS, _schemas), (EXPLORER, _explorer_link)):
        if marker in markdown:
            markdown = markdown.replace(marker, fill())
    return markdown


def on_files(files: Any, config: Any) -> Any:
    """Adds the explorer with the figures that come with galton."""
    from mkdocs.structure.files import File

    from galton.explorer import render, shipped_results

    files.append(File.generated(config, EXPLORER_PAGE, content=render(shipped_results())))
    return files


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Turns formulas into MathML, which browsers show without a script or a font from elsewhere."""
    from latex2mathml.converter import convert

    def formula(match: re.Match[str]) -> str:
        latex = _SIZED_NAMES.sub("", html.unescape(match[3])).strip()
        mathml: str = convert(latex, display="block" if match[2] == "[" else "inline")
        if "\\" in mathml:
            raise ValueError(f"{page.file.src_uri}: no MathML for {latex}")
        return f'<div class="formula">{mathml}</div>' if match[2] == "[" else mathml

    content = _FORMULA.sub(formula, content)
    if 'class="arithmatex"' in content:
        raise ValueError(f"{page.file.src_uri}: a formula is left as it was")
    return content


def _explorer_link() -> str:
    return f"[**Open the explorer**]({EXPLORER_PAGE}){{ .md-button .md-button--primary }}"


def _schemas() -> str:
    """The fields of every JSON output and file, in tables."""
    parts = []
    for path in sorted((Path(__file__).parent / "schemas").glob("*.json")):
        schema = json.loads(path.read_text())
        parts.append(f"### {schema['title']}\n\n[{path.name}](../schemas/{path.name})\n")
        parts += ["| field | type | meaning |", "|---|---|---|", *_fields(schema, ""), ""]
    return "\n".join(parts)


def _fields(schema: dict[str, Any], prefix: str) -> list[str]:
    rows = []
    for name, rule in schema["properties"].items():
        kind = rule["type"] if isinstance(rule["type"], str) else " or ".join(rule["type"])
        optional = "" if name in schema["required"] else ", optional"
        rows.append(f"| `{prefix}{name}` | {kind}{optional} | {rule['description']} |")
        inner = rule.get("items", rule)
        if "properties" in inner:
            rows += _fields(inner, f"{prefix}{name}{'[]' if 'items' in rule else ''}.")
    return rows


def _commands() -> str:
    """The help of every command, as `galton COMMAND -h` prints it at 100 columns."""
    import typer

    from galton.cli import load_commands
    from galton.cli.app import PROGRAM, SECTIONS, app

    load_commands()
    group: Any = typer.main.get_command(app)
    parts = []
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        for name in names:
            context = group.commands[name].make_context(
                f"{PROGRAM} {name}", [], resilient_parsing=True, terminal_width=100, max_content_width=100
            )
            parts.append(f"### galton {name}\n\n```text\n{group.commands[name].get_help(context)}\n```\n")
    return "\n".join(parts)
