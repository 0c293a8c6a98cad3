"""What a run must have in common with its plan before its first round."""

from __future__ import annotations

from galton.plan import Plan
from galton.training.clipping import Clipping
from galton.training.rounds import PlanViolated, check_same


def check_fits(
    plan: Plan,
    *,
    examples: int,
    clip_norm: float,
    clipping: Clipping,
    per_user: int | None,
    shuffled: bool,
    reshuffled: bool,
) -> None:
    """Raises `PlanViolated` unless a run is about what the plan was made for.

    Args:
      plan: the plan.
      examples: as for `TrainingRun`, like all that follow.
      clip_norm: of gradients.
      clipping: how they are brought to it.
      per_user: the most examples of a user in a round.
      shuffled: whether data is said to be shuffled.
      reshuffled: whether it is said to be shuffled for every epoch.
    """
    if plan.scheme.reshuffled_data:
        if not reshuffled:
            raise PlanViolated(
                "plan: its batches are slices of data that is shuffled anew for every epoch, in secret; read that "
                "by galton.batching.stream_epochs and say reshuffled=True, or plan balls-in-bins-redrawn for data "
                "at hand"
            )
    elif plan.scheme.shuffled_data and not shuffled:
        raise PlanViolated(
            "plan: its batches are slices of data that was shuffled once, in secret; read that by "
            "galton.batching.stream and say shuffled=True, or plan balls-in-bins for data at hand"
        )
    check_same("clip_norm", clip_norm, plan.clip_norm)
    check_same("clipping", clipping.kind, plan.clipping)
    if per_user != plan.per_user:
        unit = "an example" if plan.per_user is None else f"a user, at most {plan.per_user} examples a round"
        raise PlanViolated(
            f"per_user = {per_user}: the unit of the plan is {unit}; for users, group examples by "
            "galton.batching.group_by_user and train by train(users=...) of galton.training.jax or .torch, by "
            "make_private(users=...) of galton.training.opacus, or a loop of your own with per_user=...; or plan "
            "for the unit that you train with"
        )
    check_same("examples" if per_user is None else "users", examples, plan.examples)
