"""Wrong input of all kinds to the whole command line and the public API: no traceback, no NaN, bounded time and memory.

    python benchmarks/fuzz.py --cases 10000 --seed 1 --log fuzz.jsonl

Cases are a pure function of the seed and their number. They start from a call that works, of every command and of every
public function and class, and change some of its words or arguments: to other good values, to borderline, absurd and
malformed ones, to files that are missing, truncated, of a wrong kind or forged. Problems are small, and what rightly
asks for hours of work (10^12 samples, say) is not drawn. A case may end in an answer or in an error of galton's own.
It is a violation if it ends in anything else (a traceback; an exit code other than 0, 2, 3 and 130), if a result or
the output has a NaN, and if it takes more than 4 GB or a minute of processor time (a busy machine is no fault of the
case). Cases run in a child process, one after another; a child that exceeds a limit is killed, which counts as a
violation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import write
from benchmarks.fuzzing.cases import cases
from benchmarks.fuzzing.running import CODES, MEMORY, PATIENCE, SECONDS, Outcome, Runner


def summary(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """A row per command or public name: how many cases, their ends, the most time and memory."""
    rows = []
    for name in sorted({outcome.name for outcome in outcomes}):
        own = [outcome for outcome in outcomes if outcome.name == name]
        rows.append(
            {
                "name": name,
                "cases": len(own),
                "codes": {str(code): number for code, number in Counter(outcome.code for outcome in own).items()},
                "most_seconds": round(max(outcome.seconds for outcome in own), 3),
                "most_megabytes": round(max(outcome.megabytes for outcome in own)),
                "violations": sum(bool(outcome.violation) for outcome in own),
            }
        )
    return rows


def logged(path: Path | None) -> dict[int, Outcome]:
    """Returns the cases of an earlier run that was broken off, by their numbers; a last line that is cut counts not."""
    if path is None or not path.exists():
        return {}
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    path.write_text("".join(whole))
    return {outcome.index: outcome for outcome in (Outcome(**json.loads(line)) for line in whole)}


def main() -> None:
    """Runs cases and writes results/fuzz.json."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this long")
    parser.add_argument("--log", type=Path, help="every case, a JSON object a line; not run again if there")
    parser.add_argument("--dry", action="store_true", help="write no result file")
    chosen = parser.parse_args()
    outcomes: list[Outcome] = []
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        place = Path(folder)
        os.environ["GALTON_FUZZ"] = folder
        before = logged(chosen.log)
        log = stack.enter_context(chosen.log.open("a")) if chosen.log else None
        runner = Runner(place, chosen.seed)
        stack.callback(runner.close)
        for case in cases(chosen.seed, chosen.start, chosen.start + chosen.cases):
            outcome = before.get(case.index) or runner(case)
            outcomes.append(outcome)
            if log is not None and case.index not in before:
                log.write(json.dumps(asdict(outcome)) + "\n")
                log.flush()
            if outcome.violation:
                print(f"{outcome.index} {outcome.call!r}\n  {outcome.violation[-1500:]}", flush=True)
            if time.perf_counter() - begun > chosen.seconds:
                break
    violations = [asdict(outcome) for outcome in outcomes if outcome.violation]
    print(f"{len(outcomes)} cases, {len(violations)} violations, {time.perf_counter() - begun:.0f} s")
    if not chosen.dry:
        limits = {
            "seconds": SECONDS,
            "seconds_of_method_paper": PATIENCE,
            "megabytes": MEMORY >> 20,
            "exit_codes": sorted(CODES),
        }
        totals = {"cases": len(outcomes), "seed": chosen.seed, "start": chosen.start, "violations": violations}
        slowest = max(outcomes, key=lambda outcome: outcome.seconds)
        largest = max(outcomes, key=lambda outcome: outcome.megabytes)
        extremes = {"slowest": asdict(slowest), "largest": asdict(largest)}
        write("fuzz", summary(outcomes), **totals, limits=limits, **extremes, seconds=time.perf_counter() - begun)


if __name__ == "__main__":
    main()
