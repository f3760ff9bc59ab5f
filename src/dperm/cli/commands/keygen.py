"""A pair of keys that sign models and check them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dperm.cli.printing import say


@dataclass(frozen=True, kw_only=True)
class KeygenOptions:
    path: Annotated[Path, typer.Argument(help="File for the private key; the public one goes to PATH.pub.")]
    passphrase: Annotated[
        bool,
        typer.Option("--passphrase", help="Encrypt the private key: asks at the terminal, or reads DPERM_KEY_PASSPHRASE_FILE."),
    ] = False


def keygen(asked: KeygenOptions) -> None:
    """A pair of keys: the private one signs models, heads and budgets (--sign-key), the public one checks them (--verify-key).

    \b
    Examples:
      dperm keygen signer.pem
      dperm keygen owner.pem --passphrase
    """
    from dperm.privacy.certificates.signing import asked_passphrase, make_key

    public = make_key(asked.path, asked_passphrase(asked.path, new=True) if asked.passphrase else None)
    say(f"Private key in {asked.path}: keep it to yourself. Public key in {public}: give it to whoever checks models.")
