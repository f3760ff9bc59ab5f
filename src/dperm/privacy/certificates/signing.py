"""Digests of what is stated, and signatures on them (Ed25519).

A digest shows that a statement was changed since it was made, by accident or by somebody who did not make a new one. Against
somebody who does, sign: whoever holds the public key sees who vouched for the digest.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dperm._files import make_new, read_bounded
from dperm._json import on_one_line

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PASSPHRASE_FILE = "DPERM_KEY_PASSPHRASE_FILE"
WITHDRAWN = "DPERM_WITHDRAWN_KEYS"


def digest_of(statement: Any) -> str:
    """SHA-256, in hexadecimal, of a JSON-ready value: the same whatever the order of its keys."""
    return hashlib.sha256(json.dumps(statement, sort_keys=True, ensure_ascii=True, allow_nan=False).encode()).hexdigest()


def make_key(path: str | Path, passphrase: bytes | None = None) -> Path:
    """A new private key at `path`, for its owner's eyes, and its public key beside it, at `path`.pub, which is returned. With a
    `passphrase` the private key is encrypted.

    ValueError where one of them exists, or a link in its place; OSError, with neither left behind, where one cannot be written.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, private, public = Ed25519PrivateKey.generate(), Path(path), Path(f"{path}.pub")
    pem = serialization.Encoding.PEM
    hidden = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    written: list[Path] = []
    try:
        for target, content, mode in (
            (private, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, hidden), 0o600),
            (public, key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo), 0o644),
        ):
            make_new(target, content, mode)
            written.append(target)
    except OSError as error:
        for target in written:  # one without the other is of no use
            target.unlink()
        if isinstance(error, FileExistsError):
            raise ValueError(f"{error.filename} exists already: choose another name.") from None
        raise
    return public


_LONGEST = 1 << 20  # bytes of a key, or of the first line of a passphrase's file


class SigningError(RuntimeError):
    """A key that was read did not sign."""


class SigningKey:
    """A private key, read from its file when the object is made: what happens to the file later changes nothing.

    path : the file, as `make_key` writes it. ValueError for another kind of file, or one that cannot be read. Where it has a
    passphrase this is asked for (see `asked_passphrase`).
    """

    def __init__(self, path: str | Path) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        try:
            content = read_bounded(Path(path), _LONGEST)
            passphrase = asked_passphrase(path) if b"BEGIN ENCRYPTED" in content else None
            key = _loaded(content, passphrase, path)
        except OSError as error:
            raise ValueError(f"Cannot read the private key {path}: {error.strerror}.") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"Expected an Ed25519 private key in {path}, got {type(key).__name__}.")
        self._key = key

    @property
    def public(self) -> str:
        """Its public key, as 64 hexadecimal digits."""
        return _text_of(self._key.public_key())

    def sign(self, digest: str) -> str:
        """The signature of a digest, in hexadecimal. SigningError where the cryptographic library fails."""
        try:
            return self._key.sign(digest.encode()).hex()
        except Exception as error:  # whatever it is: the caller keeps what was to be signed
            raise SigningError(f"Cannot sign: {error}") from error


def _loaded(content: bytes, passphrase: bytes | None, path: str | Path) -> object:
    """The private key that a file holds. ValueError where it holds none, or has another passphrase."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(content, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{path} is no private key{' with this passphrase' * bool(passphrase)}: {error}") from None


def asked_passphrase(path: str | Path, *, new: bool = False) -> bytes:
    """The passphrase of a private key: the first line of the file that DPERM_KEY_PASSPHRASE_FILE names, or else what is typed at
    the terminal, twice for a `new` key.

    Raises
    ------
    ValueError
        Without a file and a terminal, for no passphrase, and where what is typed twice differs.
    """
    if named := os.environ.get(PASSPHRASE_FILE):
        try:
            found = read_bounded(Path(named), _LONGEST).partition(b"\n")[0].rstrip(b"\r")
        except OSError as error:
            raise ValueError(f"Cannot read the passphrase's file {named} ({PASSPHRASE_FILE}): {error.strerror}.") from None
    elif sys.stdin.isatty():
        try:
            found = getpass.getpass(f"Passphrase of {on_one_line(str(path))}: ").encode()
            again = getpass.getpass("Once more: ").encode() if new else found
        except EOFError:
            raise ValueError(f"Expected a passphrase of {path}, got none.") from None
        if found != again:
            raise ValueError("The two passphrases differ.")
    else:
        raise ValueError(
            f"Expected a terminal to type the passphrase of {path}, or {PASSPHRASE_FILE}, which names a file with it."
        )
    if not found:
        raise ValueError(f"Expected a passphrase of {path}, got none.")
    return found


def sign(digest: str, key: str | Path | SigningKey) -> str:
    """The signature of a digest by a private key, or by the one in a file, in hexadecimal. ValueError for another file."""
    return (key if isinstance(key, SigningKey) else SigningKey(key)).sign(digest)


def check_signature(digest: str, signature: str, key: str | Path) -> None:
    """ValueError where the owner of the public key at `key` did not sign this digest."""
    public = public_key(key)
    _refuse_withdrawn(public, key)
    if not signature:
        raise ValueError(f"It is not signed, but a signature by the key {key} is asked for.")
    if not is_signed(digest, signature, public):
        raise ValueError(f"Its signature is not that of the key {key}: it was changed, or signed by somebody else.")


def _refuse_withdrawn(public: str, key: str | Path) -> None:
    """ValueError for a key that is among those that were withdrawn: public keys in the folder that DPERM_WITHDRAWN_KEYS names."""
    if (named := os.environ.get(WITHDRAWN)) and public in map(public_key, sorted(Path(named).iterdir())):
        raise ValueError(f"The key {key} was withdrawn ({WITHDRAWN}): nothing that it signed is vouched for.")


def is_signed(digest: str, signature: str, public: str) -> bool:
    """Whether the owner of a public key, as 64 hexadecimal digits, signed this digest."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), digest.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def public_key(path: str | Path) -> str:
    """The public key in a file, as 64 hexadecimal digits. ValueError for another kind of file, or one that cannot be read."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(read_bounded(Path(path), _LONGEST))
    except OSError as error:
        raise ValueError(f"Cannot read the public key {path}: {error.strerror}.") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{path} is no public key: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"Expected an Ed25519 public key in {path}, got {type(key).__name__}.")
    return _text_of(key)


def _text_of(key: Ed25519PublicKey) -> str:
    return key.public_bytes_raw().hex()
