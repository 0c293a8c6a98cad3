"""How the page looks: phone and desktop, day, night and paper."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Nothing is loaded and nothing runs, whatever a plan says."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --card: #f5f7fa; --ink: #16202e; --muted: #566375; --line: #d5dce5;
  --first: #2563c9; --second: #c4510b; --third: #a3195b; --tint: #e8f0fd;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #10151c; --card: #19212b; --ink: #e7ecf3; --muted: #a3b0c0; --line: #344151;
    --first: #79aaff; --second: #f59a56; --third: #ff86bd; --tint: #1a2a44;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: break-word;
}
header, main, footer { max-width: 68rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 2rem; }
h1 { font-size: clamp(1.7rem, 1.2rem + 2vw, 2.4rem); line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.01em; }
h2 { font-size: 1.4rem; line-height: 1.25; margin: 0 0 .75rem; letter-spacing: -.005em; }
h3 { font-size: 1.05rem; line-height: 1.35; margin: 1.5rem 0 .35rem; }
p, ul, ol { max-width: 44rem; margin: 0 0 .8rem; }
ul { padding-left: 1.2rem; }
li { margin-bottom: .45rem; }
a { color: var(--first); }
.lead { font-size: 1.1rem; color: var(--muted); }
.small { font-size: .875rem; color: var(--muted); }
nav ul {
  list-style: none; display: flex; flex-wrap: wrap; gap: .35rem 1.1rem; max-width: none;
  padding: 0; margin: 1.25rem 0 0;
}
nav li { margin: 0; }
nav a { display: inline-block; padding: .3rem 0; text-decoration: none; }
nav a:hover, nav a:focus-visible { text-decoration: underline; }
.facts { display: grid; grid-template-columns: repeat(2, 1fr); gap: .75rem; margin: 1.5rem 0 0; }
.facts div { background: var(--card); border-radius: .6rem; padding: .8rem .9rem; min-width: 0; }
.facts div:first-child { background: var(--tint); }
.facts dt { font-size: .85rem; color: var(--muted); line-height: 1.3; }
.facts dd { margin: .15rem 0 0; font-size: clamp(1.15rem, 4.4vw, 1.5rem); font-weight: 650; line-height: 1.25; }
section { padding: 2rem 0 1rem; border-top: 1px solid var(--line); margin-top: 1.5rem; }
.columns { display: grid; grid-template-columns: minmax(0, 1fr); gap: 1rem 3rem; align-items: start; }
.columns > div { min-width: 0; }
.columns > div > h3:first-child, .columns > div > figure:first-child { margin-top: .5rem; }
.claim {
  font-size: 1.05rem; max-width: none; background: var(--tint); border-radius: .6rem; padding: .9rem 1.1rem;
  margin-bottom: 1.25rem;
}
figure { margin: .75rem 0; max-width: 31rem; }
figure h3 { margin: 0 0 .5rem; }
figcaption { font-size: .9rem; line-height: 1.5; color: var(--muted); margin-top: .4rem; }
svg.plot { display: block; width: 100%; height: auto; overflow: visible; font-family: inherit; }
svg.plot * { stroke-linejoin: round; stroke-linecap: butt; }
svg.plot image { image-rendering: pixelated; }
table { border-collapse: collapse; width: 100%; max-width: 44rem; margin: .5rem 0 1rem; font-size: .95rem; }
caption { text-align: left; color: var(--muted); font-size: .9rem; padding-bottom: .35rem; }
th, td { text-align: left; vertical-align: top; padding: .45rem .6rem .45rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; overflow-wrap: anywhere; }
tbody th { font-weight: 500; color: var(--muted); }
.settings tbody th { width: 38%; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
thead th, td.word { overflow-wrap: normal; }
.number { text-align: right; padding-left: .5rem; padding-right: 0; white-space: nowrap; overflow-wrap: normal; }
td small, th small { display: block; color: var(--muted); font-weight: 400; font-size: .85em; line-height: 1.4; }
tr.own > * { font-weight: 650; color: var(--ink); }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .85rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--card); padding: 1rem; border-radius: .6rem; }
code { overflow-wrap: anywhere; }
details { margin: .5rem 0 1rem; }
summary { cursor: pointer; color: var(--first); padding: .35rem 0; }
footer { padding-bottom: 3rem; }
:focus-visible { outline: 2px solid var(--first); outline-offset: 2px; }
@media (max-width: 30rem) {
  table { font-size: .85rem; }
  th, td { padding-right: .35rem; }
}
@media (max-width: 24rem) {
  table { font-size: .72rem; }
  th, td { padding-right: .2rem; }
}
@media (min-width: 48rem) {
  header, main, footer { padding-left: 2rem; padding-right: 2rem; }
  header { padding-top: 3.5rem; }
  .facts { grid-template-columns: repeat(4, 1fr); }
  .columns { grid-template-columns: repeat(2, minmax(0, 1fr)); }
}
@media print {
  :root {
    color-scheme: light;
    --page: #ffffff; --card: #ffffff; --ink: #000000; --muted: #444444; --line: #bbbbbb;
    --first: #1d4fa3; --second: #a8450a; --third: #8a1550; --tint: #ffffff;
  }
  body { font-size: 10.5pt; }
  nav, details { display: none; }
  .facts div { border: 1px solid var(--line); }
  .facts { grid-template-columns: repeat(4, 1fr); }
  .columns { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  section { padding-top: 1rem; }
  figure, tr, li { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""
