"""From typing to an answer: processor and wall seconds of whole commands, with an empty cache and with a warm one.

    git archive a7961f4^ src | tar x -C /tmp/before
    python benchmarks/answers.py --before /tmp/before/src   # the same commands by the code of that folder, in turns

Every command runs in a process of its own with folders of its own. Cold: nothing is kept from before. Warm: once more,
with what the first left in the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import RESULTS, markdown, write

GOAL = "--bins 128 --epochs 16 --delta 1e-5"
COMMANDS = {
    "calibrate, 64 bands": f"calibrate sqrt:64 {GOAL} --epsilon 1",
    "calibrate, identity": f"calibrate identity {GOAL} --epsilon 0.5",
    "plan of the demo": "plan --examples 50000 --batch-size 500 --epochs 20 --epsilon 2 --delta 1e-5 -o {folder}/plan",
}
HERE = Path(__file__).parents[1] / "src"


def seconds(command: str, source: Path, folder: Path) -> dict[str, float]:
    """Processor and wall seconds of one command by the code in `source`, with its folders in `folder`."""
    variables = {
        "PYTHONPATH": str(source),
        "GALTON_STATE": str(folder / "state"),
        "GALTON_CACHE": str(folder / "cache"),
        "XDG_CACHE_HOME": str(folder / "xdg"),
    }
    words = command.format(folder=tempfile.mkdtemp(dir=folder)).split()
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    program = [sys.executable, "-P", "-c", "from galton.cli import main; main()", *words]
    subprocess.run(program, env=os.environ | variables, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu": cpu, "wall": time.perf_counter() - start, "load": os.getloadavg()[0]}


def measure(name: str, sources: dict[str, Path], repeats: int) -> dict[str, Any]:
    """The least of some runs, the sources taking turns."""
    row: dict[str, Any] = {"command": COMMANDS[name]}
    for _ in range(repeats):
        for source, path in sources.items():
            with tempfile.TemporaryDirectory() as folder:
                for kind in ("cold", "warm") if source == "now" else ("cold",):  # nothing was kept before
                    run = seconds(COMMANDS[name], path, Path(folder))
                    best = row.get(f"{source}, {kind}")
                    row[f"{source}, {kind}"] = run if best is None or run["cpu"] < best["cpu"] else best
    return row


def table(rows: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The rows as text."""
    kinds = ("before, cold", "now, cold", "now, warm")
    body = []
    for name, row in rows.items():
        cells = [f"{row[kind]['cpu']:.1f} ({row[kind]['wall']:.1f})" if kind in row else "-" for kind in kinds]
        ratio = f"{row['before, cold']['cpu'] / row['now, cold']['cpu']:.1f}x" if "before, cold" in row else "-"
        body.append([name, *cells, ratio])
    return ["command", *(f"{kind}, s CPU (wall)" for kind in kinds), "cold, fewer by"], body


def main() -> None:
    """Measures the commands asked for; others keep the figures of an earlier run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="src folder of an older galton")
    parser.add_argument("--commands", nargs="*", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    sources = {"now": HERE} | ({"before": arguments.before} if arguments.before else {})
    path = RESULTS / "answers.json"
    rows = json.loads(path.read_text())["rows"][0] if path.exists() else {}
    for name in arguments.commands:
        rows[name] = measure(name, sources, arguments.repeats)
        print(name, json.dumps(rows[name]), flush=True)
        write("answers", [rows])
        markdown("answers", *table(rows))


if __name__ == "__main__":
    main()
