"""A pair of keys that sign models and check them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dperm.cli.shared import say

__all__ = ["register"]


def keygen(
    path: Annotated[Path, typer.Argument(help="File for the private key; the public one goes to PATH.pub.")],
) -> None:
    """A pair of keys: the private one signs models (train --sign-key), the public one checks them (--verify-key).

    \b
    Example:
      dperm keygen signer.pem
    """
    from dperm.privacy.signing import make_key

    public = make_key(path)
    say(f"Private key in {path}: keep it to yourself. Public key in {public}: give it to whoever checks models.")


def register(app: typer.Typer) -> None:
    app.command()(keygen)
