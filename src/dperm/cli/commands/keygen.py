"""A pair of keys that sign models and check them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dperm.cli.printing import say


def keygen(
    path: Annotated[Path, typer.Argument(help="File for the private key; the public one goes to PATH.pub.")],
    passphrase: Annotated[
        bool,
        typer.Option("--passphrase", help="Encrypt the private key: asks at the terminal, or reads DPERM_KEY_PASSPHRASE_FILE."),
    ] = False,
) -> None:
    """A pair of keys: the private one signs models, heads and budgets (--sign-key), the public one checks them (--verify-key).

    \b
    Examples:
      dperm keygen signer.pem
      dperm keygen owner.pem --passphrase
    """
    from dperm.privacy.certificates.signing import asked_passphrase, make_key

    public = make_key(path, asked_passphrase(path, new=True) if passphrase else None)
    say(f"Private key in {path}: keep it to yourself. Public key in {public}: give it to whoever checks models.")


def register(app: typer.Typer) -> None:
    app.command()(keygen)
