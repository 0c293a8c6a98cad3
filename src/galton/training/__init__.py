"""Training with exactly what a plan analysed: `run` needs no framework; `jax`, `torch`, `opacus` are thin adapters."""

from galton.training.run import PlanViolated, TrainingRun, check_record

__all__ = ["PlanViolated", "TrainingRun", "check_record"]
