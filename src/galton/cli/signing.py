"""The commands sign and keygen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from galton.cli import options, show
from galton.cli.app import command
from galton.cli.plan import Folder


@command
def sign(
    *,
    folder: Folder,
    key: Annotated[Path, typer.Option(help="Private key (Ed25519, PEM); galton keygen makes one.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="New file to write the signature to.", show_default="DIR/plan.sig"),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Sign a plan, so that others can train with it by your word.

    A plan that you have neither made nor verified yet is verified first.
    """
    from galton.plan import sign_plan
    from galton.plan.folder import SIGNATURE

    path = output or folder / SIGNATURE
    signature = sign_plan(folder, key, path)
    if as_json:
        return show.print_json({"path": str(path), **signature.to_json()})
    return show.print_table(f"plan {folder}", [("signed by", signature.signer), ("written", str(path))])


@command
def keygen(
    path: Annotated[Path, typer.Argument(metavar="PRIVATE", help="New file for the private key, like officer.pem.")],
    as_json: options.AsJson = False,
) -> None:
    """Make a key pair to sign plans with.

    The private key is for its owner only, the public key beside it for all.
    """
    from galton.plan import new_key_pair

    public = new_key_pair(path)
    if as_json:
        return show.print_json({"private": str(path), "public": str(public)})
    return show.print_table(
        "keys", [("private", f"{path}, for galton sign; keep it"), ("public", f"{public}, for all")]
    )
