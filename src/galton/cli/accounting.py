"""The commands delta, epsilon, profile, calibrate and certify."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from galton.cli import options, show
from galton.cli.app import command
from galton.errors import InvalidArgument
from galton.guarantee import Adjacency, Guarantee

if TYPE_CHECKING:
    from galton.accounting import DeltaEstimate
    from galton.pair import DominatingPair
    from galton.strategies import Strategy


def _merged(pair: DominatingPair) -> int:
    """How many neighbouring bins share a mode."""
    from galton.pair import Pair

    return pair.merged if isinstance(pair, Pair) else 1


def _described(spec: str, strategy: Strategy, pair: DominatingPair) -> dict[str, Any]:
    """What was analysed: every command's JSON holds it."""
    return {
        "strategy": spec,
        "strategy_hash": strategy.digest,
        "bins": pair.bins,
        "rounds": pair.rounds,
        "epochs": -(-pair.rounds // pair.bins),
        "participation": pair.participation,
        "merged": _merged(pair),
    }


def _words(spec: str, pair: DominatingPair) -> tuple[str, str]:
    epochs, merged = -(-pair.rounds // pair.bins), _merged(pair)
    passes = f"{epochs} {'epoch' if epochs == 1 else 'epochs'}"
    words = f"{spec}, {pair.rounds} rounds in {passes} of {pair.bins} batches, participation {pair.participation}"
    return "mechanism", words + (f", {merged} bins merged into one mode" if merged > 1 else "")


def _with_merge_loss(
    values: dict[str, Any], strategy: Strategy, pair: DominatingPair, epsilon: float, adjacency: Adjacency
) -> None:
    """Adds what merging bins is estimated to cost."""
    from galton.pair import Pair

    if isinstance(pair, Pair) and pair.merged > 1:
        from galton.accounting.merging import merge_loss

        loss = merge_loss(strategy, pair, epsilon, adjacency)
        values["merge_loss"] = None if loss is None else loss.delta
        values["merge_noise"] = None if loss is None else loss.noise


def _merge_row(values: dict[str, Any]) -> list[tuple[str, str]]:
    if "merge_loss" not in values:
        return []
    loss, words = values["merge_loss"], "unknown"
    if loss is not None:
        noise = 100 * (values["merge_noise"] - 1)
        words = f"noise about {noise:.2g}% larger, or delta {loss:.3g} times (an estimate; the limits are certified)"
    return [("cost of merging", words)]


def _directions(estimate: DeltaEstimate) -> list[tuple[str, str]]:
    return [
        (
            bounds.direction.value,
            f"{bounds.delta:.4g} in [{bounds.lower:.4g}, {bounds.upper:.4g}], "
            f"{bounds.samples:,} samples; {bounds.reason}",
        )
        for bounds in estimate.by_direction
    ]


@command
def delta(
    *,
    mechanism: options.Mechanism,
    noise_multiplier: options.Multiplier,
    epsilon: options.Epsilon,
    adjacency: options.AdjacencyName = options.ADJACENCY,
    settings: options.EstimationOptions,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Estimate delta at a given epsilon, with certified limits."""
    with execution.options(**asdict(settings)) as accounting_options:
        from galton import accounting

        strategy, pair = mechanism.build(noise_multiplier)
        estimate = accounting.delta(pair, epsilon, Adjacency(adjacency), options=accounting_options)
        values = estimate.to_json() | _described(mechanism.strategy, strategy, pair)
        values["noise_multiplier"] = noise_multiplier
        _with_merge_loss(values, strategy, pair, epsilon, Adjacency(adjacency))
    if as_json:
        return show.print_json(values)
    rows = [
        _words(mechanism.strategy, pair),
        ("noise multiplier", f"{noise_multiplier:g} (sensitivity 1)"),
        ("epsilon", f"{epsilon:g}, {adjacency} adjacency"),
        ("delta", f"{estimate.delta:.4g}"),
        ("limits", f"[{estimate.lower:.4g}, {estimate.upper:.4g}] with confidence {settings.confidence:g}"),
        *_directions(estimate),
        *_merge_row(values),
        ("time", f"{estimate.seconds:.1f} s, seed {estimate.seed}"),
    ]
    return show.print_table("delta", rows)


@command
def epsilon(
    *,
    mechanism: options.Mechanism,
    noise_multiplier: options.Multiplier,
    delta: options.Delta,
    rounds_done: Annotated[
        int | None,
        typer.Option(
            help="Epsilon of the first so many rounds alone, with the noise of the whole run; fewer than one epoch "
            "count as one. It holds if the run ends there for a reason that has nothing to do with the data.",
            show_default="all rounds",
        ),
    ] = None,
    adjacency: options.AdjacencyName = options.ADJACENCY,
    settings: options.EstimationOptions,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Estimate epsilon at a given delta, with certified limits."""
    with execution.options(**asdict(settings)) as accounting_options:
        from galton import accounting

        strategy, pair = mechanism.build(noise_multiplier)
        if rounds_done is not None:
            pair = mechanism.first_rounds(strategy, noise_multiplier, rounds_done)
        estimate = accounting.epsilon(pair, delta, Adjacency(adjacency), options=accounting_options)
        values = estimate.to_json() | _described(mechanism.strategy, strategy, pair)
        values["noise_multiplier"] = noise_multiplier
        if rounds_done is not None:
            values |= {
                "rounds": strategy.rounds,
                "epochs": -(-strategy.rounds // pair.bins),
                "rounds_done": rounds_done,
            }
        else:
            _with_merge_loss(values, strategy, pair, estimate.epsilon, Adjacency(adjacency))
    if as_json:
        return show.print_json(values)
    done = [] if rounds_done is None else [("rounds done", f"{rounds_done} of {strategy.rounds}")]
    rows = [
        _words(mechanism.strategy, pair),
        *done,
        ("noise multiplier", f"{noise_multiplier:g} (sensitivity 1{' over the whole run' if done else ''})"),
        ("delta", f"{delta:g}, {adjacency} adjacency"),
        ("epsilon", f"{estimate.epsilon:.4f}"),
        ("limits", f"[{estimate.lower:.4f}, {estimate.upper:.4f}] with confidence {settings.confidence:g}"),
        ("without sampling", f"at most {estimate.deterministic_upper:.4f}, with certainty"),
        *_merge_row(values),
        ("time", f"{estimate.seconds:.1f} s, {estimate.samples:,} samples, seed {estimate.seed}"),
    ]
    return show.print_table("epsilon", rows)


@command
def profile(
    *,
    mechanism: options.Mechanism,
    noise_multiplier: options.Multiplier,
    epsilons: Annotated[
        str | None,
        typer.Option(
            help="Epsilons of the curve, separated by commas.",
            show_default="a grid from 0 to where delta is below 1e-9",
        ),
    ] = None,
    points: Annotated[
        int | None, typer.Option(help="Number of epsilons in the default grid.", show_default="33")
    ] = None,
    adjacency: options.AdjacencyName = options.ADJACENCY,
    settings: options.ProfileOptions,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Estimate delta as a function of epsilon, with certified limits.

    With it come the trade-off curve and the largest advantage of an adversary.
    """
    if epsilons is not None and points is not None:
        raise InvalidArgument("points", points, "is for the default grid: leave out --epsilons or --points")
    grid = None if epsilons is None else options.numbers("epsilons", epsilons)
    with execution.options(**asdict(settings)) as accounting_options:
        from galton import accounting

        strategy, pair = mechanism.build(noise_multiplier)
        size = {} if points is None else {"points": points}
        curve = accounting.profile(pair, grid, Adjacency(adjacency), **size, options=accounting_options)
        values = curve.to_json() | _described(mechanism.strategy, strategy, pair)
        values["noise_multiplier"] = noise_multiplier
    if as_json:
        return show.print_json(values)
    columns = zip(curve.epsilons, curve.deltas, curve.lowers, curve.uppers, strict=True)
    show.print_grid(
        f"privacy profile of {_words(mechanism.strategy, pair)[1]}",
        ("epsilon", "delta", "lower", "upper"),
        [(f"{x:.4g}", f"{d:.3e}", f"{low:.3e}", f"{up:.3e}") for x, d, low, up in columns],
    )
    rows = [
        ("advantage", f"{curve.advantage:.4f}, at most {curve.advantage_upper:.4f} (total variation distance)"),
        ("confidence", f"{settings.confidence:g} for all limits at once"),
        ("time", f"{curve.seconds:.1f} s, {curve.samples:,} samples, seed {curve.seed}"),
    ]
    return show.print_table("", rows)


@command
def calibrate(
    *,
    mechanism: options.Mechanism,
    epsilon: options.Epsilon,
    delta: options.Delta,
    tau: options.CalibrationTau = 1.05,
    workload: options.WorkloadName = "prefix",
    adjacency: options.AdjacencyName = options.ADJACENCY,
    settings: options.CalibrationOptions,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Find the smallest noise multiplier for a privacy target."""
    guarantee = Guarantee(epsilon, delta, Adjacency(adjacency))
    with execution.options(**asdict(settings)) as accounting_options:
        from galton import accounting
        from galton.workloads import parse_workload

        strategy, pair = mechanism.build()
        errors = strategy.row_errors(parse_workload(workload, strategy.rounds))
        calibration = accounting.calibrate(pair, guarantee, options=accounting_options, tau=tau)
    multiplier = calibration.noise_multiplier
    sensitivity = strategy.sensitivity(mechanism.bins)
    sigma = multiplier * sensitivity
    values = calibration.to_json() | _described(mechanism.strategy, strategy, pair)
    values |= {
        "sigma": sigma,
        "sensitivity": sensitivity,
        "noise_multiplier_per_participation": sigma / strategy.column_norm(),
        "rmse": sigma * float((errors**2).mean() ** 0.5),
        "max_error": sigma * float(errors.max()),
        "workload": workload,
    }
    _with_merge_loss(values, strategy, pair.at(multiplier), epsilon, Adjacency(adjacency))
    if as_json:
        return show.print_json(values)
    check = calibration.check
    how = "on fresh samples" if check.samples else "without samples"
    rows = [
        _words(mechanism.strategy, pair),
        ("target", str(guarantee)),
        ("noise multiplier", f"{multiplier:.5g} (sensitivity 1 over the whole run)"),
        ("per participation", f"{values['noise_multiplier_per_participation']:.5g} (largest column of C scaled to 1)"),
        ("sigma", f"{sigma:.5g} for C as given, clip norm 1"),
        (
            "unamplified",
            f"{calibration.unamplified:.5g}: amplification saves a factor {calibration.unamplified / multiplier:.2f}",
        ),
        ("error", f"{values['rmse']:.5g} root mean square, {values['max_error']:.5g} at most ({workload} workload)"),
        ("delta", f"{check.delta:.4g} in [{check.lower:.4g}, {check.upper:.4g}] {how}"),
        *_merge_row(values),
        ("time", f"{calibration.seconds:.1f} s, seed {calibration.seed}"),
    ]
    return show.print_table("calibration", rows)


@command
def certify(
    *,
    mechanism: options.Mechanism,
    noise_multiplier: options.Multiplier,
    epsilon: options.Epsilon,
    delta: options.Delta,
    tau: Annotated[
        float | None,
        typer.Option(
            help="Take enough samples to prove the claim if the true delta is delta / tau.",
            show_default="1.05, or 1.25 where that takes too many samples",
        ),
    ] = None,
    failure: Annotated[
        float | None,
        typer.Option(
            help="Failure probability of this attempt: that a false claim is accepted.", show_default="0.0015 * delta"
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write the certificate to.", show_default="no file")
    ] = None,
    adjacency: options.AdjacencyName = options.ADJACENCY,
    settings: options.CertificationOptions,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Test a privacy claim once, with fresh randomness.

    Exit code 0 if it is accepted, 3 if it is rejected.
    """
    from galton import files

    if output is not None:
        if files.is_folder(output):
            raise InvalidArgument("output", str(output), "is a folder; name a file")
        files.check_target(output)
    guarantee = Guarantee(epsilon, delta, Adjacency(adjacency))
    with execution.options(**asdict(settings)) as accounting_options:
        from galton import accounting
        from galton.cli.outputs import keep

        _, pair = mechanism.build(noise_multiplier)
        certificate = accounting.certify(pair, guarantee, options=accounting_options, tau=tau, failure=failure)
    values = certificate.to_json() | {
        "strategy": mechanism.strategy,
        "participation": certificate.participation,
    }
    if output is not None:
        text = json.dumps(certificate.to_json(), indent=1, allow_nan=False) + "\n"
        keep(lambda path: files.write_text(path, text), output)  # the verdict decides the exit code, whatever happens
    if as_json:
        show.print_json(values)
    else:
        rows = [
            _words(mechanism.strategy, pair),
            ("noise multiplier", f"{noise_multiplier:g} (sensitivity 1)"),
            ("claim", str(guarantee)),
            ("verdict", "ACCEPTED" if certificate.accepted else "REJECTED"),
            ("delta at most", f"{certificate.delta_upper:.4g}"),
            ("failure probability", f"{certificate.failure_probability:.2g} over {certificate.attempts} attempt(s)"),
            *[
                (
                    verdict.direction.value,
                    f"estimate {verdict.estimate:.4g}, {verdict.samples:,} samples; {verdict.reason}",
                )
                for verdict in certificate.by_direction
            ],
            ("statement", certificate.statement),
            ("time", f"{certificate.seconds:.1f} s, seed {certificate.seed}"),
        ]
        show.print_table("certificate", rows)
    if not certificate.accepted:
        raise typer.Exit(3)
