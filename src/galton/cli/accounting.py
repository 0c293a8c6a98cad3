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
    from galton.pair import Pair
    from galton.strategies import Strategy


def _described(spec: str, strategy: Strategy, pair: Pair) -> dict[str, Any]:
    """What was analysed: every command's JSON holds it."""
    return {
        "strategy": spec,
        "strategy_hash": strategy.digest,
        "bins": pair.bins,
        "rounds": pair.rounds,
        "epochs": -(-pair.rounds // pair.bins),
        "merged": pair.merged,
    }


def _words(spec: str, pair: Pair) -> tuple[str, str]:
    words = f"{spec}, {pair.rounds} rounds in {-(-pair.rounds // pair.bins)} epochs of {pair.bins} batches"
    return "mechanism", words + (f", {pair.merged} bins merged into one mode" if pair.merged > 1 else "")


def _with_merge_loss(
    found: dict[str, Any], strategy: Strategy, pair: Pair, epsilon: float, adjacency: Adjacency
) -> None:
    """Adds what merging bins is estimated to cost."""
    if pair.merged > 1:
        from galton.accounting.merging import merge_loss

        found["merge_loss"] = merge_loss(strategy, pair, epsilon, adjacency)


def _merge_row(found: dict[str, Any]) -> list[tuple[str, str]]:
    if "merge_loss" not in found:
        return []
    loss = found["merge_loss"]
    return [
        (
            "cost of merging",
            "unknown"
            if loss is None
            else f"delta about {loss:.3g} times larger (an estimate; the limits are certified)",
        )
    ]


def _directions(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (
            one["direction"],
            f"{one['delta']:.4g} in [{one['lower']:.4g}, {one['upper']:.4g}], "
            f"{one['samples']:,} samples; {one['reason']}",
        )
        for one in found["by_direction"]
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
    """Delta at one epsilon, with certified limits."""
    from galton import accounting

    strategy, pair = mechanism.build(noise_multiplier)
    with execution.options(**asdict(settings)) as accounting_options:
        estimate = accounting.delta(pair, epsilon, Adjacency(adjacency), options=accounting_options)
        found = estimate.to_json() | _described(mechanism.strategy, strategy, pair)
        found["noise_multiplier"] = noise_multiplier
        _with_merge_loss(found, strategy, pair, epsilon, Adjacency(adjacency))
    if as_json:
        return show.print_json(found)
    rows = [
        _words(mechanism.strategy, pair),
        ("noise multiplier", f"{noise_multiplier:g} (sensitivity 1)"),
        ("epsilon", f"{epsilon:g}, {adjacency} adjacency"),
        ("delta", f"{found['delta']:.4g}"),
        ("limits", f"[{found['lower']:.4g}, {found['upper']:.4g}] with confidence {settings.confidence:g}"),
        *_directions(found),
        *_merge_row(found),
        ("time", f"{found['seconds']:.1f} s, seed {found['seed']}"),
    ]
    return show.print_table("delta", rows)


@command
def epsilon(
    *,
    mechanism: options.Mechanism,
    noise_multiplier: options.Multiplier,
    delta: options.Delta,
    adjacency: options.AdjacencyName = options.ADJACENCY,
    settings: options.EstimationOptions,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Epsilon at one delta, with certified limits."""
    from galton import accounting

    strategy, pair = mechanism.build(noise_multiplier)
    with execution.options(**asdict(settings)) as accounting_options:
        estimate = accounting.epsilon(pair, delta, Adjacency(adjacency), options=accounting_options)
        found = estimate.to_json() | _described(mechanism.strategy, strategy, pair)
        found["noise_multiplier"] = noise_multiplier
        _with_merge_loss(found, strategy, pair, found["epsilon"], Adjacency(adjacency))
    if as_json:
        return show.print_json(found)
    rows = [
        _words(mechanism.strategy, pair),
        ("noise multiplier", f"{noise_multiplier:g} (sensitivity 1)"),
        ("delta", f"{delta:g}, {adjacency} adjacency"),
        ("epsilon", f"{found['epsilon']:.4f}"),
        ("limits", f"[{found['lower']:.4f}, {found['upper']:.4f}] with confidence {settings.confidence:g}"),
        ("without sampling", f"at most {found['deterministic_upper']:.4f}, with certainty"),
        *_merge_row(found),
        ("time", f"{found['seconds']:.1f} s, {found['samples']:,} samples, seed {found['seed']}"),
    ]
    return show.print_table("epsilon", rows)


@command
def profile(
    *,
    mechanism: options.Mechanism,
    noise_multiplier: options.Multiplier,
    epsilons: Annotated[str | None, typer.Option(help="Comma-separated epsilons [a grid down to delta 1e-9].")] = None,
    points: Annotated[int, typer.Option(help="Points of the default grid.")] = 17,
    adjacency: options.AdjacencyName = options.ADJACENCY,
    settings: options.ProfileOptions,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """The curve delta(epsilon), the trade-off curve and the best possible advantage of an adversary."""
    from galton import accounting

    strategy, pair = mechanism.build(noise_multiplier)
    grid = None if epsilons is None else options.numbers("epsilons", epsilons)
    with execution.options(**asdict(settings)) as accounting_options:
        curve = accounting.profile(pair, grid, Adjacency(adjacency), points=points, options=accounting_options)
        found = curve.to_json() | _described(mechanism.strategy, strategy, pair)
        found["noise_multiplier"] = noise_multiplier
    if as_json:
        return show.print_json(found)
    columns = zip(found["epsilons"], found["deltas"], found["lowers"], found["uppers"], strict=True)
    show.print_grid(
        f"privacy profile of {_words(mechanism.strategy, pair)[1]}",
        ("epsilon", "delta", "lower", "upper"),
        [(f"{x:.4g}", f"{d:.3e}", f"{low:.3e}", f"{up:.3e}") for x, d, low, up in columns],
    )
    rows = [
        ("advantage", f"{found['advantage']:.4f}, at most {found['advantage_upper']:.4f} (total variation distance)"),
        ("confidence", f"{settings.confidence:g} for all limits at once"),
        ("time", f"{found['seconds']:.1f} s, {found['samples']:,} samples, seed {found['seed']}"),
    ]
    return show.print_table("", rows)


@command
def calibrate(
    *,
    mechanism: options.Mechanism,
    epsilon: options.Epsilon,
    delta: options.Delta,
    tau: Annotated[float, typer.Option(help="Aim at delta / tau, so that a certificate has room.")] = 1.05,
    workload: options.WorkloadName = "prefix",
    adjacency: options.AdjacencyName = options.ADJACENCY,
    settings: options.CalibrationOptions,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """The smallest noise multiplier for a target (epsilon, delta)."""
    from galton import accounting
    from galton.workloads import parse_workload

    guarantee = Guarantee(epsilon, delta, Adjacency(adjacency))
    strategy, pair = mechanism.build()
    matrix = strategy.check_workload(parse_workload(workload, strategy.rounds))
    with execution.options(**asdict(settings)) as accounting_options:
        calibrated = accounting.calibrate(pair, guarantee, options=accounting_options, tau=tau)
    multiplier = calibrated.noise_multiplier
    sensitivity = strategy.sensitivity(mechanism.bins)
    errors = strategy.row_errors(matrix)
    sigma = multiplier * sensitivity
    found = calibrated.to_json() | _described(mechanism.strategy, strategy, pair)
    found |= {
        "sigma": sigma,
        "sensitivity": sensitivity,
        "noise_multiplier_per_participation": sigma / strategy.column_norm(),
        "rmse": sigma * float((errors**2).mean() ** 0.5),
        "max_error": sigma * float(errors.max()),
        "workload": workload,
    }
    _with_merge_loss(found, strategy, pair.at(multiplier), epsilon, Adjacency(adjacency))
    if as_json:
        return show.print_json(found)
    check = found["check"]
    rows = [
        _words(mechanism.strategy, pair),
        ("target", str(guarantee)),
        ("noise multiplier", f"{multiplier:.5g} (sensitivity 1 over the whole run)"),
        ("per participation", f"{found['noise_multiplier_per_participation']:.5g} (largest column of C scaled to 1)"),
        ("sigma", f"{sigma:.5g} for C as given, clip norm 1"),
        (
            "unamplified",
            f"{found['unamplified']:.5g}: amplification saves a factor {found['unamplified'] / multiplier:.2f}",
        ),
        ("error", f"{found['rmse']:.5g} root mean square, {found['max_error']:.5g} at most ({workload} workload)"),
        ("delta", f"{check['delta']:.4g} in [{check['lower']:.4g}, {check['upper']:.4g}] on fresh samples"),
        *_merge_row(found),
        ("time", f"{found['seconds']:.1f} s, seed {found['seed']}"),
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
        float | None, typer.Option(help="Room below the claim that sets the samples [1.05 or 1.25].")
    ] = None,
    failure: Annotated[float | None, typer.Option(help="Failure probability of this attempt [0.0015 * delta].")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the certificate to this file.")] = None,
    adjacency: options.AdjacencyName = options.ADJACENCY,
    settings: options.CertificationOptions,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Put a claim to the test once, with fresh randomness. Exit code 0: accepted; 3: rejected."""
    from galton import accounting, files

    if output is not None and output.is_dir():
        raise InvalidArgument("output", str(output), "is a folder; name a file")
    guarantee = Guarantee(epsilon, delta, Adjacency(adjacency))
    _, pair = mechanism.build(noise_multiplier)
    with execution.options(**asdict(settings)) as accounting_options:
        certificate = accounting.certify(pair, guarantee, options=accounting_options, tau=tau, failure=failure)
    found = certificate.to_json()
    if output is not None:
        files.write_text(output, json.dumps(found, indent=1, allow_nan=False) + "\n")
    if as_json:
        show.print_json(found)
    else:
        rows = [
            _words(mechanism.strategy, pair),
            ("noise multiplier", f"{noise_multiplier:g} (sensitivity 1)"),
            ("claim", str(guarantee)),
            ("verdict", "ACCEPTED" if found["accepted"] else "REJECTED"),
            ("delta at most", f"{found['delta_upper']:.4g}"),
            ("failure probability", f"{found['failure_probability']:.2g} over {found['attempts']} attempt(s)"),
            *[
                (one["direction"], f"estimate {one['estimate']:.4g}, {one['samples']:,} samples; {one['reason']}")
                for one in found["by_direction"]
            ],
            ("statement", found["statement"]),
            ("time", f"{found['seconds']:.1f} s, seed {found['seed']}"),
        ]
        show.print_table("certificate", rows)
    if not found["accepted"]:
        raise typer.Exit(3)
