"""batching-picture: how Poisson, shuffling, balls-in-bins (drawn once, redrawn) and others form batches."""

from __future__ import annotations

from typing import Any

from galton.batching import (
    BallsInBins,
    Batches,
    CyclicPoisson,
    MinSeparation,
    Poisson,
    RedrawnBallsInBins,
    Scheme,
    Shuffle,
)
from reproduction import drawing
from reproduction.points import Maker
from reproduction.result import Recipe, Row, Rows, number

NAMES = "ABCDEFGHI"
EXAMPLES, BINS, EPOCHS = len(NAMES), 3, 2
ROUNDS = BINS * EPOCHS
SCHEMES: dict[str, Scheme] = {
    "Poisson": Poisson(EXAMPLES, EXAMPLES / BINS, ROUNDS),
    "shuffling": Shuffle(EXAMPLES, BINS, ROUNDS, reshuffle=True),
    "balls-in-bins": BallsInBins(EXAMPLES, BINS, ROUNDS),
    "balls-in-bins, redrawn": RedrawnBallsInBins(EXAMPLES, BINS, ROUNDS),
    "min-separation": MinSeparation(EXAMPLES, EXAMPLES / BINS, 2, ROUNDS),
    "cyclic Poisson": CyclicPoisson(EXAMPLES, EXAMPLES / BINS, 2, ROUNDS),
}
COLUMNS = ("scheme", "epoch", "round", "size", "examples")


def picture_rows(maker: Maker) -> list[Row]:
    """Who is in which batch, with the seed of the run."""
    rows: list[Row] = []
    for name, scheme in SCHEMES.items():
        batches = Batches(scheme, padded_batch_size=EXAMPLES, seed=maker.seed)
        for turn in range(ROUNDS):
            members = [NAMES[example] for example in sorted(batches.at(turn).examples)]
            row: Row = {"scheme": name, "epoch": turn // BINS + 1, "round": turn + 1, "size": len(members)}
            rows.append(row | {"examples": " ".join(members) or None})
    return rows


def _counts(rows: Rows, scheme: str) -> list[int]:
    """How often each example takes part."""
    batches = [_members(row) for row in rows if row["scheme"] == scheme]
    return [sum(example in members for members in batches) for example in NAMES]


def _members(row: Row) -> list[str]:
    return str(row["examples"] or "").split()


def _text(rows: Rows) -> str:
    parts = []
    for name in SCHEMES:
        sizes = [int(number(row, "size")) for row in rows if row["scheme"] == name]
        counts = _counts(rows, name)
        parts.append(
            f"{name}: batches of {min(sizes)} to {max(sizes)}, an example {min(counts)} to {max(counts)} times in all"
        )
    return (
        f"{EXAMPLES} examples, {ROUNDS} rounds, {BINS} batches an epoch. {'; '.join(parts)}. Poisson decides afresh "
        "for every example and round. Shuffling (here anew in every epoch) has batches of one size, so that examples "
        "depend on each other. Balls-in-bins throws every example into a batch by itself, once, and the "
        "batches return in every epoch: one pass over the data is one epoch. Redrawn, it throws them again in every "
        "epoch. Min-separation is Poisson sampling with rests: after taking part, an example sits out the next round "
        "here. Cyclic Poisson (here two groups, for two "
        "bands) samples from one group in odd and from the other in even rounds."
    )


def _draw(rows: Rows) -> Any:
    figure, axes = drawing.canvas(columns=len(SCHEMES), width=17.2, height=4.1)
    for axis, name in zip(axes, SCHEMES, strict=True):
        of_scheme = [row for row in rows if row["scheme"] == name]
        for row in of_scheme:
            turn = int(number(row, "round"))
            members = _members(row)
            for example, letter in enumerate(NAMES, 1):
                filled = letter in members
                axis.plot(
                    turn,
                    example,
                    marker="s",
                    markersize=15,
                    markerfacecolor=("0.15" if number(row, "epoch") == 1 else "0.5") if filled else "white",
                    markeredgecolor="0.75",
                )
                if filled:
                    axis.annotate(letter, (turn, example), color="white", ha="center", va="center", fontsize=8)
            axis.annotate(str(row["size"]), (turn, EXAMPLES + 1), ha="center", va="center", fontsize=8, color="0.3")
        axis.axvline(BINS + 0.5, color="0.3", linestyle="--", linewidth=1)
        axis.set_xlim(0.4, ROUNDS + 0.6)
        axis.set_ylim(EXAMPLES + 1.6, 0.4)
        axis.set_xticks(range(1, ROUNDS + 1))
        axis.set_yticks([*range(1, EXAMPLES + 1), EXAMPLES + 1], [*NAMES, "size"])
        axis.tick_params(length=0, labelsize=8)
        axis.set_title(name)
        axis.set_xlabel("round (dashed: second epoch)", fontsize=8)
        for side in axis.spines.values():
            side.set_visible(False)
    axes[0].set_ylabel("example")
    return figure


BATCHING_PICTURE = Recipe(
    "batching-picture",
    f"How six schemes form batches: {ROUNDS} rounds, {BINS} batches an epoch, {EPOCHS} epochs",
    0.1,
    COLUMNS,
    picture_rows,
    _text,
    _draw,
)
