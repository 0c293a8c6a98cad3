"""The command optimize."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from galton.cli import options, show
from galton.cli.app import command
from galton.cli.options import listed
from galton.errors import InvalidArgument
from galton.guarantee import Adjacency, Guarantee
from galton.plots import FORMATS
from galton.progress import progress_bar
from galton.strategies.grammar import OPTIMIZATION

AMPLIFIED = ("bins", "redrawn")
"""Ways to take part under amplification; the values of `galton.optimize`."""
WITHOUT_AMPLIFICATION = ("fixed-order", "min-separation")
"""Ways to take part for the classical optimum; the values of `galton.unamplified_optimum`."""
OLD_NAMES = {"balls-in-bins": "bins"}
"""Names of earlier versions that go on working."""
_SEARCH = (
    *("plot", "method", "estimator", "iterations", "samples", "tau", "confidence"),
    *(field.name for field in fields(options.Execution)),
)
"""Options of the search under amplification: the classical optimum takes none of them."""


@command
def optimize(
    *,
    context: typer.Context,
    family: Annotated[str, typer.Argument(metavar="FAMILY", help=f"The family that C is from: {OPTIMIZATION.help}")],
    bins: options.Bins,
    epochs: options.Epochs,
    epsilon: options.Epsilon,
    delta: options.Delta,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write the strategy to (.json).", show_default="no file"),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help=f"File to plot the search and its result to ({listed(FORMATS)}).", show_default="no plot"),
    ] = None,
    rounds: options.Rounds = None,
    workload: options.WorkloadName = "prefix",
    objective: Annotated[
        str,
        typer.Option(
            help="Error to minimise: rmse or max. rmse is the root mean square over all rounds, max the largest error "
            "of a round."
        ),
    ] = "rmse",
    participation: Annotated[
        str,
        typer.Option(
            help="How examples take part: bins, redrawn, min-separation:S, fixed-order or min-separation. Bins are "
            "drawn once, or redrawn in every epoch; with a number, rounds are at least S apart, and C has at most S "
            "bands (S is chosen if it is auto); the last two are without amplification, and give the classical optimum."
        ),
    ] = AMPLIFIED[0],
    method: Annotated[
        str,
        typer.Option(
            help="Search method: lbfgs or paper. The paper's is gradient descent on plain samples, with bisection for "
            "the noise."
        ),
    ] = "lbfgs",
    estimator: Annotated[
        str,
        typer.Option(
            help="Estimator of delta during the search: mixture, tilted or plain.",
            show_default="mixture; plain for --method paper; tilted for other --participation than bins",
        ),
    ] = "",
    samples: Annotated[
        int | None,
        typer.Option(
            help="Samples per direction and iteration of the search.",
            show_default="4096; for other --participation than bins 2048, and down to 512 for long runs",
        ),
    ] = None,
    iterations: Annotated[
        int,
        typer.Option(
            help="Largest number of iterations of a descent; 0 stands for the default.",
            show_default="60; 300 for --method paper",
        ),
    ] = 0,
    tau: options.CalibrationTau = 1.05,
    adjacency: options.AdjacencyName = options.ADJACENCY,
    confidence: options.Confidence = 0.999,
    execution: options.Execution,
    as_json: options.AsJson = False,
) -> None:
    """Find the matrix C with the least error for a privacy target.

    Ctrl-C keeps the best so far.
    """
    from galton.errors import choice
    from galton.files import check_target, is_folder
    from galton.optimization.separation import OPEN_SEPARATION
    from galton.plots import check_plot_path
    from galton.separated import SeparatedPair, named_separation
    from galton.workloads import parse_workload

    guarantee = Guarantee(epsilon, delta, Adjacency(adjacency))
    total = options.total_rounds(bins, epochs, rounds)
    if output is not None and (is_folder(output) or output.suffix != ".json"):
        raise InvalidArgument("output", str(output), "must be the name of a .json file")
    if output is not None:
        check_target(output)
    if plot is not None:
        check_plot_path(plot)
    matrix = parse_workload(workload, total)
    participation = OLD_NAMES.get(participation, participation)
    amplified = participation in (*AMPLIFIED, OPEN_SEPARATION) or named_separation(participation) is not None
    if not amplified:
        choice("participation", participation, (*AMPLIFIED, f"{SeparatedPair.kind}:S", *WITHOUT_AMPLIFICATION))
        for name in _SEARCH:
            source = context.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                value = context.params[name]
                shown = str(value) if isinstance(value, Path) else value
                raise InvalidArgument(name, shown, "is for bins: the classical optimum needs no search")
        return _classical(family, bins, total, guarantee, matrix, workload, objective, participation, output, as_json)
    with execution.options(confidence=confidence) as accounting_options:
        from galton.cli.outputs import keep
        from galton.optimization import optimize as run
        from galton.optimization.plot import plot_optimization
        from galton.strategies import save_strategy

        optimized = run(
            family,
            bins,
            total,
            guarantee,
            workload=matrix,
            objective=objective,
            method=method,
            participation=participation,
            estimator=estimator,
            samples=samples,
            iterations=iterations,
            options=accounting_options,
            tau=tau,
            watch=lambda stage, index, value: accounting_options.tell(
                f"optimising {stage} | {value:.5g}", index, index + 10
            ),
        )
    written = output is None or keep(lambda path: save_strategy(optimized.strategy, path), output)
    written &= plot is None or keep(lambda path: plot_optimization(optimized, path), plot)
    if optimized.interrupted:
        options.warn("interrupted: this is the best strategy so far, calibrated like any other")
    if as_json:
        files = {"output": str(output) if output else None, "plot": str(plot) if plot else None}
        show.print_json(optimized.to_json() | {"workload": workload, "objective_name": objective} | files)
        raise typer.Exit(0 if written else 2)
    classical = optimized.unamplified
    check = optimized.calibration.check
    how = "on fresh samples" if check.samples else "without samples"
    rows = [
        (
            "strategy",
            f"{optimized.family} for {total} rounds in epochs of {bins} batches, "
            f"participation {optimized.participation}, {optimized.strategy.digest[:15]}",
        ),
        ("target", str(guarantee)),
        ("error", f"{optimized.rmse:.5g} root mean square, {optimized.max_error:.5g} at most ({workload} workload)"),
        ("noise multiplier", f"{optimized.noise_multiplier:.5g} (sensitivity 1), calibrated {how}"),
        ("delta", f"{check.delta:.4g} in [{check.lower:.4g}, {check.upper:.4g}], confidence {confidence:g}"),
        (
            "classical optimum",
            f"error {classical['rmse']:.5g} without amplification, "
            f"about {classical['balls_in_bins_rmse_estimate']:.5g} with bins drawn once",
        ),
        ("time", f"{optimized.seconds:.1f} s, {len(optimized.history)} iterations, seed {optimized.seed}"),
    ]
    if output is not None and written:
        rows.append(("written", str(output)))
    show.print_table("optimised strategy", rows)
    raise typer.Exit(0 if written else 2)


def _classical(
    family: str,
    bins: int,
    rounds: int,
    guarantee: Guarantee,
    matrix: object,
    workload: str,
    objective: str,
    participation: str,
    output: Path | None,
    as_json: bool,
) -> None:
    """The optimum without amplification; its multiplier is exact."""
    import time

    from galton.workloads import Workload

    assert isinstance(matrix, Workload)
    with progress_bar():
        from galton.gaussian import unamplified_multiplier
        from galton.optimization import unamplified_optimum
        from galton.strategies import save_strategy

        begun = time.perf_counter()
        strategy = unamplified_optimum(family, bins, rounds, matrix, objective, participation)
    multiplier = unamplified_multiplier(guarantee)
    sigma = multiplier * strategy.sensitivity(bins)
    values = {
        "family": family,
        "strategy_hash": strategy.digest,
        "participation": participation,
        "noise_multiplier": multiplier,
        "sigma": sigma,
        "rmse": sigma * strategy.rmse(matrix),
        "max_error": sigma * strategy.max_error(matrix),
        **guarantee.to_json(),
        "bins": bins,
        "rounds": rounds,
        "workload": workload,
        "objective_name": objective,
        "output": str(output) if output else None,
        "seconds": time.perf_counter() - begun,
    }
    if output is not None:
        save_strategy(strategy, output)
    if as_json:
        return show.print_json(values)
    rows = [
        ("strategy", f"{family} for {rounds} rounds, {participation} participation every {bins}, no amplification"),
        ("target", str(guarantee)),
        ("error", f"{values['rmse']:.5g} root mean square, {values['max_error']:.5g} at most ({workload} workload)"),
        ("noise multiplier", f"{multiplier:.5g} (sensitivity 1), exact"),
        ("time", f"{values['seconds']:.1f} s"),
    ]
    return show.print_table("classical optimum", rows)
