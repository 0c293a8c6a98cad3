"""What the paper says, against what the results say: the table of paper.md, filled from the CSV files in results/.

python -m reproduction.claims
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from galton import files
from galton.errors import InvalidFile
from reproduction.appendix import settings_of
from reproduction.banded import ahead
from reproduction.dimension_reduction import summary
from reproduction.optimized import BEST, PAPERS, behind
from reproduction.result import Rows, by_series, listed, number
from reproduction.sample_counts import enough
from reproduction.series import BALLED, SAMPLED
from reproduction.tables import BANDMF_BALLS, BANDMF_POISSON, worst_ratios
from reproduction.writing import read_rows

BEGIN, END = "<!-- claims: filled by python -m reproduction.claims -->", "<!-- end of claims -->"
PAGE = Path(__file__).parent / "paper.md"
Finding = tuple[str, bool]
"""What our rows show, in words, and whether that agrees with the paper."""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, the result that it is about, and what that result shows."""

    words: str
    result: str
    check: Callable[[Rows], Finding]


def _crossing(rows: Rows) -> Finding:
    ours, theirs = ahead(rows)
    relative = by_series(rows, "relative")[BALLED]
    words = (
        f"Poisson ahead at {listed(theirs)}, balls-in-bins at {listed(ours)}; RMSE of balls-in-bins over Poisson's "
        f"from {min(relative.values()):.3f} to {max(relative.values()):.3f}"
    )
    return words, all(epsilon < 8 for epsilon in theirs) and all(epsilon > 4 for epsilon in ours)


def _poisson_at_16(rows: Rows) -> Finding:
    values = by_series(rows, "improvement")[SAMPLED]
    largest = max(values)
    return f"unamplified RMSE over Poisson's at {largest:g}: {values[largest]:.3f}", values[largest] < 1


def _always_improves(rows: Rows) -> Finding:
    values = by_series(rows, "improvement")[BALLED]
    least = min(values, key=lambda epsilon: values[epsilon])
    return f"least improvement {values[least]:.3f}, at epsilon {least:g}", values[least] > 1


def _ahead_until_16(rows: Rows) -> Finding:
    ours, theirs = ahead(rows)
    words = f"balls-in-bins ahead at {listed(ours)}, Poisson at {listed(theirs)}"
    return words, all(epsilon >= 16 for epsilon in theirs)


def _optimized(rows: Rows) -> Finding:
    relative = by_series(rows, "relative")
    parts = [
        f"{name} {min(relative[name].values()):.3f} to {max(relative[name].values()):.3f}, behind at "
        f"{listed(behind(rows, name))}"
        for name in PAPERS
    ]
    most = {epsilon for name in PAPERS for epsilon in behind(rows, name)}
    return "; ".join(parts), len(most) <= len(relative[BALLED]) / 2 and bool(most)


def _closed(rows: Rows) -> Finding:
    lost = behind(rows, BEST)
    relative = by_series(rows, "relative")[BEST]
    chosen = ", ".join(f"{row['epsilon']}: {row['strategy']}" for row in rows if row["series"] == BEST)
    span = f"{min(relative.values()):.3f} to {max(relative.values()):.3f}"
    return f"best of ours {span}, behind at {listed(lost)} ({chosen})", not lost


def _more_batches(rows: Rows) -> Finding:
    errors = by_series(rows, "rmse", "bins")
    falling = all(
        later < earlier
        for curve in (errors[BALLED], errors[SAMPLED])
        for earlier, later in zip(list(curve.values()), list(curve.values())[1:], strict=False)
    )
    first, last = min(errors[BALLED]), max(errors[BALLED])
    spans = [f"{name} {errors[name][first]:.4g} to {errors[name][last]:.4g}" for name in (BALLED, SAMPLED)]
    return f"RMSE from {first:g} to {last:g} batches: {', '.join(spans)}", falling


def _everywhere(rows: Rows) -> Finding:
    lost = [
        f"{epochs} x {bins} at {listed(behind(of_setting, BEST))}"
        for (epochs, bins), of_setting in settings_of(rows).items()
        if behind(of_setting, BEST)
    ]
    return f"our best C behind banded with Poisson: {'; '.join(lost) or 'nowhere'}", not lost


def _samples(rows: Rows) -> Finding:
    epsilons = list(dict.fromkeys(number(row, "epsilon") for row in rows))
    parts = []
    for estimator in dict.fromkeys(str(row["series"]) for row in rows):
        counts = [enough(rows, estimator, epsilon) for epsilon in epsilons]
        parts.append(
            f"{estimator} " + ", ".join("more" if count is None else f"2^{count.bit_length() - 1}" for count in counts)
        )
    plain = [row for row in rows if row["series"] == "plain"]
    largest = max(number(row, "samples") for row in plain)
    reached = [number(row, "increase") for row in plain if row["samples"] == largest and row["increase"] is not None]
    return f"within 1% from (epsilon {listed(epsilons)}): {'; '.join(parts)}", bool(reached) and max(reached) < 0.02


def _timing(rows: Rows) -> Finding:
    ours = max(number(row, "our_seconds") for row in rows)
    least = min(number(row, "v100_131072") for row in rows)
    return f"ours at most {ours:.0f} s on this machine, the paper at least {least:.0f} s on a V100", ours < least


def _multipliers(rows: Rows) -> Finding:
    worst = worst_ratios(rows)
    words = (
        f"BandMF with Poisson within {worst[BANDMF_POISSON]:.2%}, with balls-in-bins within {worst[BANDMF_BALLS]:.2%}"
    )
    return words, max(worst[BANDMF_POISSON], worst[BANDMF_BALLS]) < 0.01


def _bands(rows: Rows) -> Finding:
    same = sum(row["bands"] == row["paper"] for row in rows)
    return f"{same} of {len(rows)} the same", same == len(rows)


def _negative(rows: Rows) -> Finding:
    deltas = summary(rows)
    words = "; ".join(
        f"epsilon {row['epsilon']:g}: {row['constant']:.4g} against {row['opposite']:.4g}" for row in deltas
    )
    return f"delta of the constant against the opposite input, {words}", all(
        row["constant"] < row["lower"] <= row["opposite"] <= row["upper"] for row in deltas
    )


CLAIMS = (
    Claim("With the best bands Poisson is slightly ahead for epsilon <= 4 and behind from 8 on", "bandmf", _crossing),
    Claim("At epsilon 16 Poisson is worse than not amplifying", "bandmf", _poisson_at_16),
    Claim("Balls-in-bins always improves on the unamplified mechanism: DP-SGD", "dpsgd", _always_improves),
    Claim("... 64 bands", "bandmf64", _always_improves),
    Claim("... best bands", "bandmf", _always_improves),
    Claim("At 64 bands balls-in-bins is ahead of Poisson until epsilon 16", "bandmf64", _ahead_until_16),
    Claim("Error falls as batches per epoch rise, for both schemes", "sampling-probability", _more_batches),
    Claim(
        "Optimised C is up to about 10% below banded with Poisson for most epsilon, behind at the extremes",
        "optimized",
        _optimized,
    ),
    Claim("(ours) The best over all families is nowhere behind", "optimized", _closed),
    Claim("(ours) ... nor in any setting of the appendix", "appendix", _everywhere),
    Claim("Fewer samples per iteration cost little, down to a point", "samples", _samples),
    Claim("Optimising takes 5 minutes to an hour", "timing", _timing),
    Claim("Noise multipliers of the CIFAR-10 runs", "sigma-table", _multipliers),
    Claim("Numbers of bands of the CIFAR-10 runs", "bands-table", _bands),
    Claim("With a negative entry in C the constant input is not the worst", "dimension-reduction", _negative),
)


def claims_table(folder: Path) -> str:
    """Returns the claims as a Markdown table; a result that is not there yet has a row that says so."""
    lines = ["| claim | result | ours | agrees |", "|---|---|---|---|"]
    for claim in CLAIMS:
        path = folder / f"{claim.result}.csv"
        words, agrees = claim.check(read_rows(path)) if path.exists() else ("not made yet", None)
        verdict = {True: "yes", False: "**no**", None: "-"}[agrees]
        lines.append(f"| {claim.words} | `{claim.result}` | {words} | {verdict} |")
    return "\n".join(lines)


def fill(page: Path, folder: Path) -> None:
    """Puts the table between the two marks of a page; the rest of the page stays as it is."""
    try:
        text = page.read_text()
    except OSError as error:
        raise InvalidFile(f"{page}: cannot be read ({error.strerror})") from None
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InvalidFile(f"{page}: must have the lines {BEGIN} and {END}")
    files.write_text(page, f"{before}{BEGIN}\n\n{claims_table(folder)}\n\n{END}{after}")


if __name__ == "__main__":
    fill(PAGE, PAGE.parent / "results")
