"""The words in which a plan says how gradients are clipped, summed and divided."""

from __future__ import annotations

FLAT, PER_GROUP, NORMALIZED = "flat", "per-group", "normalized"

CLIPPINGS = {
    FLAT: "clipped to l2 norm clip_norm",
    PER_GROUP: (
        "cut into groups of parameters, fixed before the run, each of which is clipped to a norm of its own, and the "
        "squares of these norms add up to that of clip_norm"
    ),
    NORMALIZED: "multiplied by clip_norm / (its l2 norm + gamma), for a gamma > 0 fixed before the run",
}
"""Kinds of clipping, each of which keeps the contribution of an example to l2 norm clip_norm."""

_REST = (
    "(padding counts nothing) are summed; noise of standard deviation stddev * C^-1 z is added to the sum; the result "
    "is divided by nominal_size, whatever the number of"
)  # nominal_size is the expected batch size


def convention(clipping: str, per_user: int | None) -> str:
    """Returns what a plan's file says about gradients; the same words for the same plan for ever.

    Args:
      clipping: a kind of `CLIPPINGS`.
      per_user: the most examples of a user in a round, where users are the unit.

    Returns:
      A sentence.
    """
    if per_user is None:
        return (
            f"The gradient of every example is {CLIPPINGS[clipping]}; those of a batch {_REST} examples in the batch."
        )
    return (
        f"The gradients of a user's examples of a round, at most per_user, are summed and the sum is "
        f"{CLIPPINGS[clipping]}; those of the users of a batch {_REST} users in the batch."
    )
