"""The disclosure of a plan on one printed page, in HTML that loads nothing and runs nothing."""

from __future__ import annotations

from html import escape

from galton.report.disclosure import Disclosure
from galton.report.markup import paragraphs, settings_table, table
from galton.report.numbers import written
from galton.report.style import POLICY

_CSS = """
:root { color-scheme: light; --line: #bcc4ce; --muted: #4a5565; }
@page { margin: 11mm 12mm; }
* { box-sizing: border-box; }
body {
  margin: 1.2rem auto; padding: 0 1rem; max-width: 52rem; background: #ffffff; color: #101820;
  font: 9.6pt/1.36 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
h1 { font-size: 1.5em; margin: 0 0 .3em; }
h2 { font-size: 1.08em; margin: .9em 0 .2em; }
p { margin: 0 0 .4em; }
.claim { border: 1px solid var(--line); border-left: 4px solid #2563c9; padding: .5em .8em; font-weight: 600; }
table { border-collapse: collapse; width: 100%; }
caption { text-align: left; color: var(--muted); padding-bottom: .2em; }
th, td {
  text-align: left; vertical-align: top; padding: .2em .8em .2em 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere;
}
tbody th { font-weight: 600; }
.settings tbody th { width: 17%; }
.number { text-align: right; padding-right: 0; font-variant-numeric: tabular-nums; }
.notes { color: var(--muted); margin-top: .5em; }
@media print {
  body { margin: 0; padding: 0; max-width: none; font-size: 7.4pt; line-height: 1.28; }
  tr, h2 { break-inside: avoid; break-after: auto; }
}
"""


def render_sheet(disclosure: Disclosure) -> str:
    """Returns the disclosure as one HTML page that prints on one sheet of paper.

    Args:
      disclosure: what is disclosed (`disclose`).

    Returns:
      The page.
    """
    names, rows = disclosure.figures()
    others = [(name, text) for name, text in disclosure.rows if text != disclosure.statement]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="galton">
<title>Privacy disclosure</title>
<style>{_CSS}</style>
</head>
<body>
<main>
<h1>Privacy disclosure</h1>
<p class="claim">{escape(written(disclosure.statement))}</p>
<h2>Risk in numbers</h2>
{table(names, rows, "Upper limits, rounded up")}
<div class="notes">
{paragraphs(disclosure.notes)}
</div>
<h2>What was done, and what is not covered</h2>
{settings_table(others)}
</main>
</body>
</html>
"""
