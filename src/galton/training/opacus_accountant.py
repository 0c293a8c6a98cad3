"""Opacus's accountant for a plan: it reports what the plan certified, and computes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opacus.accountants import IAccountant, register_accountant

from galton.training.rounds import PlanViolated, check_same
from galton.training.run import TrainingRun

MECHANISM = "galton"
"""The accountant's name in Opacus."""


class PlanAccountant(IAccountant):  # type: ignore[misc]
    """An Opacus accountant that reports what the plan certified and computes nothing; registered as `galton`.

    Formal guarantee: the rounds that have had noise so far, lost in a crash or not, are (epsilon, delta)-DP for the
    epsilon that `get_epsilon(delta)` returns: 0 before the first round, then the plan's epsilon for the whole run,
    however few rounds are done. A delta below the plan's is refused.

    Attributes:
      after_round: called when a round has had its noise.
    """

    def __init__(self) -> None:
        self._run: TrainingRun | None = None
        self._counted = 0
        self.after_round: Callable[[], None] = lambda: None

    @property
    def run(self) -> TrainingRun:
        """The run that is accounted for."""
        if self._run is None:
            raise PlanViolated("accountant: has no plan yet; PlanPrivacyEngine.make_private gives it one")
        return self._run

    def bind(self, run: TrainingRun) -> None:
        """Accounts for this run from now on.

        Args:
          run: the run.
        """
        self._run, self._counted = run, run.round

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """Noise multiplier, sample rate and number of steps, in the form of Opacus."""
        if self._run is None or not len(self):
            return []
        return [(self.run.plan.noise_multiplier, 1 / self.run.plan.bins, len(self))]

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Raises `PlanViolated` unless the step was one of the plan's, with noise of its own; Opacus calls this.

        Args:
          noise_multiplier: must be the plan's.
          sample_rate: must be one over the plan's batches per epoch.
        """
        check_same("noise_multiplier", noise_multiplier, self.run.plan.noise_multiplier)
        check_same("sample_rate", sample_rate, 1 / self.run.plan.bins)
        if self.run.round == self._counted:
            raise PlanViolated(f"step: round {self._counted} had no noise of the plan, or comes after the last")
        self._counted = self.run.round
        self.after_round()

    def get_epsilon(self, delta: float, *args: Any, **kwargs: Any) -> float:
        """Returns the epsilon that is guaranteed so far: the plan's, or 0 before the first round.

        Args:
          delta: the plan's, or a larger one; a smaller one raises `PlanViolated`.
          args: ignored.
          kwargs: ignored.

        Returns:
          The epsilon.
        """
        if delta < self.run.plan.guarantee.delta:
            raise PlanViolated(
                f"delta = {delta}: the plan was certified for {self.run.plan.guarantee.delta}; "
                "make a plan for a smaller one"
            )
        return self.run.plan.guarantee.epsilon if len(self) else 0.0

    def __len__(self) -> int:
        return 0 if self._run is None else self.run.released

    @classmethod
    def mechanism(cls) -> str:
        """Returns the accountant's name in Opacus."""
        return MECHANISM

    def state_dict(self, destination: Any = None) -> Any:
        """Returns the state that Opacus saves, and the plan's hash.

        Args:
          destination: as in Opacus.

        Returns:
          The state.
        """
        state = super().state_dict(destination)
        state["plan"] = self.run.plan.digest
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        """Raises `PlanViolated` unless the state is of this plan; the steps come with the optimiser's state.

        Args:
          state_dict: what `state_dict` returned.
        """
        check_same("mechanism", state_dict.get("mechanism"), MECHANISM)
        check_same("plan", state_dict.get("plan"), self.run.plan.digest)


register_accountant(MECHANISM, PlanAccountant, force=True)
