"""The tables of `benchmarks/peers.py`, from its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, duration
from galton import files, gaussian_epsilon

Cell = dict[str, Any]
LABELS = {
    "galton": "galton",
    "opake": "opake",
    "jax_privacy": "jax-privacy",
    "dp_accounting": "dp-accounting",
    "pld_accounting": "PLD_accounting",
    "opacus": "Opacus",
}
GUARANTEES = (
    (
        "galton",
        "C = I, Poisson, BandMF: upper bound; correlated noise: calibration is certified (failure and attempts are in "
        "delta), limits on epsilon fail with probability 1e-6",
    ),
    ("opake", "C = I and Poisson: upper bound; correlated noise: sampled upper bound that fails with probability 1e-6"),
    ("jax_privacy", "Poisson: upper bound; bins and min-separation: sampled verification, failure counted in delta"),
    ("dp_accounting", "upper bound"),
    ("pld_accounting", "upper and lower bound"),
    ("opacus", "upper bound"),
)
BEYOND = (
    ("opake, jax-privacy, Opacus", "training on GPUs, on which galton is not tested"),
    (
        "opake",
        "trainers for Hugging Face and TRL (SFT, DPO); adaptive clipping; correlated noise for Adam's second moments; "
        "truncated Poisson batches",
    ),
    ("jax-privacy", "truncated batches, Poisson and min-separation; fixed-size samples; clipping at scale; Keras"),
    ("dp-accounting", "many more mechanisms to compose: discrete ones, sampling without replacement, tree aggregation"),
    ("PLD_accounting", "k of t steps; allocation of any mechanism that is given by its privacy loss"),
    ("Opacus", "noise in `secure_mode`, made against attacks on floating point; adaptive clipping; years of use"),
)


def seconds_of(answer: Cell) -> str:
    """Processor time, extrapolated where marked."""
    if "extrapolated_cpu_seconds" in answer:
        return duration(answer["extrapolated_cpu_seconds"])
    return f"{answer['cpu_seconds']:.1f} s"


def refusal(answer: Cell | None) -> str | None:
    """What there is to say if there is no figure."""
    if answer is None:
        return "not run"
    if "not_offered" in answer:
        return "-"
    if "more_than" in answer:
        return f"more than {answer['more_than']:.0f} s"
    return "failed" if "failed" in answer else None


def figure(key: str) -> Callable[[Cell], str]:
    """Returns how a figure of this name and its time are shown."""

    def shown(answer: Cell) -> str:
        value = f"{answer[key]:.3f}, " if key in answer else ""
        return f"{value}{seconds_of(answer)}"

    return shown


def milliseconds(answer: Cell) -> str:
    """Processor time of a round."""
    return f"{answer['ms_processor']:.1f}"


def error(answer: Cell) -> str:
    """RMSE and time."""
    return f"{answer['rmse']:.2f}, {seconds_of(answer)}"


def checked(answer: Cell) -> str:
    """Epsilon, or delta where only that is sampled."""
    if "delta" in answer:
        return f"delta {answer['delta']:.2e} +- {answer['error']:.0e}"
    return f"{answer['epsilon']:.4f}"


def table(head: Sequence[str], lines: list[list[str]]) -> str:
    """A Markdown table."""
    rows = [list(head), ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def crossed(rows: list[Cell], task: str, peers: Sequence[str], shown: Callable[[Cell], str], first: str) -> str:
    """Cells of a task by package."""
    by_cell: dict[str, dict[str, Cell]] = {}
    for row in rows:
        if row["cell"].startswith(f"{task}, ") and row["peer"] in peers:
            by_cell.setdefault(row["cell"].removeprefix(f"{task}, "), {})[row["peer"]] = row["answer"]
    lines = []
    for name, answers in by_cell.items():
        line = [refusal(answers.get(peer)) or shown(answers[peer]) for peer in peers]
        lines.append([name, *line])
    return table([first, *(LABELS[peer] for peer in peers)], lines)


def best_bands(rows: list[Cell]) -> list[Cell]:
    """The rows with those of one mechanism by bands replaced by the best of them; its time is that of all."""
    kept: list[Cell] = []
    tried: list[Cell] = []
    for row in rows:
        (tried if row["cell"].endswith(" bands") and row["cell"].startswith("error, ") else kept).append(row)
    done = [row for row in tried if "rmse" in row["answer"]]
    if done:
        best = min(done, key=lambda row: row["answer"]["rmse"])
        spent = sum(row["answer"]["cpu_seconds"] for row in done)
        name = best["cell"].rpartition(", ")[0]
        kept.append(best | {"cell": name, "answer": best["answer"] | {"cpu_seconds": spent}})
    return kept


def tables(rows: list[Cell], names: Sequence[str]) -> Path:
    """Writes results/peers.md, cells in the order of their names."""
    order, places = list(LABELS), {name: place for place, name in enumerate(names)}
    rows = sorted(rows, key=lambda row: (places.get(row["cell"], len(places)), order.index(row["peer"])))
    rows = best_bands(rows)
    versions = {name: value for row in rows for name, value in row.get("versions", {}).items()}
    named = ", ".join(f"{name} {value}" for name, value in sorted(versions.items()))
    closed = gaussian_epsilon(0.05, 1 / 1.5)
    measured = (
        (
            "Conventions",
            "Everyone in every round of 8 bands over 64 rounds, which is the Gaussian mechanism with mu = 1 / 1.5: "
            f"epsilon at delta 0.05 is {closed:.4f} in closed form (jax-privacy: sampled delta at that "
            "epsilon; Opacus adds 0.01, the error that it allows itself).",
            crossed(rows, "check", order, checked, "C"),
        ),
        (
            "Calibration",
            "Noise for (1, 1e-5)-DP in 8 epochs of 64 batches: standard deviation of z for clip norm 1 and c_0 = 1; "
            "less is better. galton's time includes the certificate. Others search within a factor 1.5 of it.",
            crossed(rows, "calibrate", order, figure("sigma"), "batches, C"),
        ),
        (
            "Epsilon",
            "Upper limit on epsilon at the noise of galton's calibration. jax-privacy has no function for epsilon with "
            "bins: its time is that of verifying one claim, at tau 1.25.",
            crossed(rows, "epsilon", order, figure("epsilon"), "batches, C, delta"),
        ),
        (
            "Error at equal guarantee",
            "Prefix RMSE for (1, 1e-5)-DP in 16 epochs of 32 batches, with the C that each package chooses; by the "
            "same formula for all. galton's time includes the certificate. BandMF by opake is the best of 1, 2, 4 and "
            "8 bands, and the time that of all four.",
            crossed(rows, "error", order, error, "mechanism"),
        ),
        (
            "A round of noise",
            "Milliseconds of processor time, median of 10 rounds, for so many float32 parameters, added to a gradient. "
            "The BLT is the same for galton and jax-privacy; opake tunes its own, with at most as many buffers.",
            crossed(rows, "noise", ("galton", "opake", "jax_privacy", "opacus"), milliseconds, "C, parameters"),
        ),
    )
    parts = [
        f"Versions: {named}. Load average while it ran: {min(r['load'] for r in rows):.0f} to "
        f"{max(r['load'] for r in rows):.0f} on two cores.\n",
        "### What a figure is worth\n",
        table(["package", "guarantee of its figures"], [[LABELS[peer], words] for peer, words in GUARANTEES]),
    ]
    for title, words, body in measured:
        if body.count("\n") > 2:  # else nothing of it was run yet
            parts += [f"### {title}\n", f"{words}\n", body]
    beyond = table(["package", "what"], [list(row) for row in BEYOND])
    parts += ["### What others can that galton cannot\n", beyond]
    path = RESULTS / "peers.md"
    files.write_text(path, "\n".join(parts))
    return path
