"""Training with exactly what a plan analysed: `run` needs no framework; `jax`, `torch`, `opacus` are thin adapters."""

from galton.training.folder import fork_run
from galton.training.lost import LostRounds, RoundsSkipped
from galton.training.progress import progress_bar
from galton.training.record import check_record, release_run
from galton.training.rounds import PlanViolated
from galton.training.run import TrainingRun
from galton.training.stop import stop_run

__all__ = [
    "LostRounds",
    "PlanViolated",
    "RoundsSkipped",
    "TrainingRun",
    "check_record",
    "fork_run",
    "progress_bar",
    "release_run",
    "stop_run",
]
