"""What a reviewer asks for, in one table: who is protected, from what, how sure it is, and what is not covered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from galton.accountants import Curve
from galton.plan import Plan
from galton.report import words
from galton.report.curves import DELTAS, relies_on_secrecy
from galton.report.numbers import DIGITS, at_most, percent_at_most, short, written
from galton.report.risk import RATES, Risk, risk_if_known, risk_if_secret
from galton.typechecking import typechecked

NOTHING = "none"
RHO = "\N{GREEK SMALL LETTER RHO}"


@typechecked
@dataclass(frozen=True)
class Disclosure:
    """What is to be disclosed of a run that follows a plan, or of several releases together.

    Attributes:
      plan: content hash of the plan; empty for several releases.
      statement: the guarantee in words.
      rows: names of fields and what is stated there.
      secret: risk if the batches stay secret.
      known: risk if they become known, so that nothing is amplified; None if a release does not tell.
      amplified: whether the two differ.
      limits: where the limits for secret batches come from, and how sure they are.

    Example:
      >>> from galton import compose
      >>> from galton.report import disclose_composition
      >>> disclosure = disclose_composition(compose(["gaussian:sigma=3"], delta=1e-5))
      >>> disclosure.figures()[1][0]
      ('advantage of the best guess', '13.3%')
    """

    plan: str
    statement: str
    rows: tuple[tuple[str, str], ...]
    secret: Risk
    known: Risk | None
    amplified: bool
    limits: str

    def figures(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Returns the numbers as a table.

        Returns:
          Names of columns, and rows whose first entry is a name; one column of numbers where nothing is amplified.
        """
        risks = [self.secret] if self.known is None else [self.secret, self.known] if self.amplified else [self.known]
        rows = [("advantage of the best guess", *(percent_at_most(risk.advantage) for risk in risks))]
        for index, rate in enumerate(RATES):
            limits = (percent_at_most(risk.true_positive_rates[index]) for risk in risks)
            rows.append((f"true positives at {percent_at_most(rate)} false positives", *limits))
        for index, delta in enumerate(DELTAS):
            rows.append((f"ε at δ = {short(delta)}", *(_told(risk.epsilons[index]) for risk in risks)))
        rows.append(("μ of Gaussian DP", *(_told(risk.mu) for risk in risks)))
        if any(risk.mu_delta for risk in risks):
            rows.append(("… but for δ of", *(_told(risk.mu_delta, 2) for risk in risks)))
        rows.append((f"{RHO} of zCDP", *(_told(risk.rho) for risk in risks)))
        if any(risk.rho_delta for risk in risks):
            rows.append(("… but for δ of", *(_told(risk.rho_delta, 2) for risk in risks)))
        names = ("secret batches", "known batches") if len(risks) == 2 else ("at most",)
        return ("", *names), rows

    @property
    def notes(self) -> list[str]:
        """What the numbers mean and where they end, in sentences."""
        amplified = self.limits
        if self.known is not None and self.amplified:
            mechanism = "of the Gaussian mechanism " if self.plan else ""
            amplified += (
                f" Numbers for known batches are those {mechanism}without amplification, with certainty; secret "
                "batches have them too."
            )
        elif self.known is not None and self.plan:
            amplified = "The Gaussian mechanism in closed form, with certainty: nothing relies on secret batches."
        if self._nothing_gained:
            amplified += (
                " Where ε is the same in both columns, secrecy could not be counted: mostly because, at so small a δ, "
                "cutting batches to their padded size costs half of δ or more as long as batches are secret. A larger "
                "padded batch size helps."
            )
        return [
            amplified,
            "μ: no test does better than the best test of N(μ, 1) against N(0, 1), but for the δ below it. "
            f"{RHO}: zCDP, or approximate zCDP if there is a δ below it. Amplification lowers neither {RHO} nor a μ "
            f"that holds without δ: at very large ε it is not felt. {NOTHING.capitalize()}: nothing can be claimed "
            "there, mostly because cutting batches to their padded size costs more than that δ.",
        ]

    @property
    def _nothing_gained(self) -> bool:
        """Whether some epsilon for secret batches is that for known ones."""
        if self.known is None or not self.amplified:
            return False
        return any(
            secret is not None and secret == known
            for secret, known in zip(self.secret.epsilons, self.known.epsilons, strict=True)
        )

    def markdown(self) -> str:
        """Returns both tables in Markdown, to be copied into a paper or a model card.

        Returns:
          Lines that end in a newline.
        """
        names, figures = self.figures()
        lines = ["| field | statement |", "|---|---|"]
        lines += [f"| {_cell(name)} | {_cell(written(text))} |" for name, text in self.rows]
        lines += ["", "| upper limits |" + "".join(f" {_cell(name)} |" for name in names[1:])]
        lines += ["|---|" + "---:|" * (len(names) - 1)]
        lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in figures]
        return "\n".join([*lines, "", *(f"{written(note)}\n" for note in self.notes)]).rstrip() + "\n"

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary."""
        return {
            "plan": self.plan,
            "disclosure": [{"field": name, "statement": text} for name, text in self.rows],
            "risk": {
                "batches_secret": self.secret.to_json(),
                "batches_known": None if self.known is None else self.known.to_json(),
                "amplified": self.amplified,
                "basis": self.limits,
            },
        }


@typechecked
def disclose(plan: Plan, curve: Curve) -> Disclosure:
    """Returns what is to be disclosed of a run that follows a plan.

    Args:
      plan: the plan.
      curve: its privacy curve (`privacy_curve`).

    Returns:
      The table, and the numbers for secret and for known batches.

    Example:
      >>> from galton.report import privacy_curve
      >>> from galton import Guarantee, make_plan
      >>> claim = Guarantee(2.0, 1e-5, "zero-out")
      >>> plan = make_plan(claim, examples=64, batch_size=16, epochs=1, batching="fixed-order", strategy="identity")
      >>> disclosure = disclose(plan, privacy_curve(plan))
      >>> dict(disclosure.rows)["unit of privacy"]
      'one example. A person with several is protected less.'
      >>> round(disclosure.known.mu, 4)  # of the Gaussian mechanism that is (2, 1e-5)-DP
      0.5016
    """
    return Disclosure(
        plan=plan.digest,
        statement=plan.statement,
        rows=tuple(_rows(plan)),
        secret=risk_if_secret(plan, curve),
        known=risk_if_known(plan),
        amplified=relies_on_secrecy(plan),
        limits=curve.words,
    )


SETTING = "central: whoever trains sees the data and is trusted; the guarantee is against all others."


def _rows(plan: Plan) -> list[tuple[str, str]]:
    guarantee, wording = plan.guarantee, plan.guarantee.adjacency.wording
    secret = relies_on_secrecy(plan)
    sampling = plan.worded(f"{plan.scheme.description}. ") + (
        "Who is in which batch stays secret, and the guarantee relies on it."
        if secret
        else "The guarantee does not rely on the batches being secret."
    )
    rows = [
        ("guarantee", plan.statement),
        ("setting", SETTING),
        ("unit of privacy", _unit(plan)),
        ("adjacency", f"{guarantee.adjacency}. {plan.worded(wording.neighbours)}"),
        (
            "what is covered",
            "every noisy gradient, every checkpoint, the final model and all that is computed from them, against "
            "anybody, with any other knowledge.",
        ),
        (
            "mechanism",
            f"{plan.rounds:,} rounds ({short(plan.rounds / plan.bins)} epochs) of batches of about "
            f"{short(plan.expected_batch_size)} {plan.unit}s out of {plan.examples:,}; gradients of each {plan.unit} "
            f"clipped to l2 norm {short(plan.clip_norm)}; {_correlation(plan)} Gaussian noise, strategy "
            f"{plan.spec}, noise multiplier {short(plan.noise_multiplier, DIGITS)} for C of sensitivity 1 over the "
            "whole run.",
        ),
        ("sampling assumption", sampling),
        (
            "if the batches leak",
            "The numbers for known batches hold, which are those without amplification."
            if secret
            else "Nothing changes.",
        ),
        ("accountant", f"{plan.evidence.accountant} ({plan.evidence.standing.value}). {plan.evidence.words}"),
        ("truncation", plan.worded(words.batches(plan))),
        (
            "public",
            f"the number of {plan.unit}s and all settings of the plan; they were chosen without looking at the data.",
        ),
        (
            "hyperparameter tuning",
            f"covered by the noise, not by the guarantee of a run above. {plan.search}"
            if plan.tuning is not None
            else "not covered: every run on the same data, tuning included, has a cost of its own, to be added.",
        ),
        (
            "not covered",
            "losses, accuracies and other statistics of the training data; other runs on it; models that mix examples "
            "(batch normalisation); what the last digits of floating-point noise may tell; access to the secrets of "
            "the run.",
        ),
        (
            "to verify",
            f"plan {plan.digest}, made by galton {plan.versions.get('galton', 'of an unknown version')}: galton verify "
            "proves the guarantee again from the plan alone.",
        ),
    ]
    return rows + [("warning", warning + ".") for warning in plan.warnings]


def _unit(plan: Plan) -> str:
    if plan.per_user is None:
        return "one example. A person with several is protected less."
    return (
        f"one user with all examples, of which at most {plan.per_user} take part in a round and are clipped together."
    )


def _told(limit: float | None, digits: int = 4) -> str:
    return NOTHING if limit is None else at_most(limit, digits)


def _cell(text: str) -> str:
    """Text that stays in its cell of a Markdown table, whatever a plan says."""
    cleaned = " ".join(text.splitlines())
    for mark in ("\\", "|", "`", "<", "*", "_", "["):
        cleaned = cleaned.replace(mark, "\\" + mark)
    return cleaned


def _correlation(plan: Plan) -> str:
    """Whether the noise of different rounds is independent: whether C is diagonal."""
    square = plan.strategy.rows == plan.strategy.rounds
    return "independent" if square and plan.strategy.bands == 1 else "correlated"
