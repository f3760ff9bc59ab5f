"""Digests of what is stated, and signatures on them (Ed25519).

A digest shows that a statement was changed since it was made, by accident or by somebody who did not make a new one. Against
somebody who does, sign: whoever holds the public key sees who vouched for the digest.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dperm._files import make_new

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = [
    "SigningError",
    "SigningKey",
    "check_signature",
    "digest_of",
    "is_signed",
    "make_key",
    "public_key",
    "sign",
]


def digest_of(statement: Any) -> str:
    """SHA-256, in hexadecimal, of a JSON-ready value: the same whatever the order of its keys."""
    return hashlib.sha256(json.dumps(statement, sort_keys=True, ensure_ascii=True, allow_nan=False).encode()).hexdigest()


def make_key(path: str | Path) -> Path:
    """A new private key at `path`, for its owner's eyes, and its public key beside it, at `path`.pub, which is returned.

    ValueError where one of them exists, or a link in its place; OSError, with neither left behind, where one cannot be written.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, private, public = Ed25519PrivateKey.generate(), Path(path), Path(f"{path}.pub")
    pem = serialization.Encoding.PEM
    written: list[Path] = []
    try:
        for target, content, mode in (
            (private, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()), 0o600),
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


class SigningError(RuntimeError):
    """A key that was read did not sign."""


class SigningKey:
    """A private key, read from its file when the object is made: what happens to the file later changes nothing.

    path : the file, as `make_key` writes it. ValueError for another kind of file, or one that cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(Path(path).read_bytes(), None)
        except OSError as error:
            raise ValueError(f"Cannot read the private key {path}: {error.strerror}.") from None
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is no private key: {error}") from None
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


def sign(digest: str, key: str | Path | SigningKey) -> str:
    """The signature of a digest by a private key, or by the one in a file, in hexadecimal. ValueError for another file."""
    return (key if isinstance(key, SigningKey) else SigningKey(key)).sign(digest)


def check_signature(digest: str, signature: str, key: str | Path) -> None:
    """ValueError where the owner of the public key at `key` did not sign this digest."""
    public = public_key(key)
    if not signature:
        raise ValueError(f"It is not signed, but a signature by the key {key} is asked for.")
    if not is_signed(digest, signature, public):
        raise ValueError(f"Its signature is not that of the key {key}: it was changed, or signed by somebody else.")


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
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(Path(path).read_bytes())
    except OSError as error:
        raise ValueError(f"Cannot read the public key {path}: {error.strerror}.") from None
    except ValueError as error:
        raise ValueError(f"{path} is no public key: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"Expected an Ed25519 public key in {path}, got {type(key).__name__}.")
    return _text_of(key)


def _text_of(key: Ed25519PublicKey) -> str:
    return key.public_bytes_raw().hex()
