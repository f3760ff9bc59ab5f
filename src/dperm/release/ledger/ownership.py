"""Who may change a budget, and the time of a log: the owners of keys, by signatures in the entries.

Each signature also covers the hash of the entry before, so that it holds at one place of one log: an entry that its owner signed
once cannot be written again later, when it would undo what came after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dperm.privacy.certificates.signing import SigningKey, digest_of, is_signed
from dperm.release.ledger.heads import Known, Standing

#: The kind of an entry that sets the log's time back to the right one.
CORRECTION = "time"


def owned(body: Mapping[str, Any], chain: str, held: Standing | None, key: SigningKey | None, owner_key: str) -> dict[str, Any]:
    """The body of a budget's entry, signed.

    Parameters
    ----------
    body : mapping
        The entry without a signature: its "budget" and "spent".
    chain : str
        The hash of the entry before.
    held : Standing, optional
        The budget that this one replaces.
    key : SigningKey, optional
        The owner's key. None: the budget is anybody's.
    owner_key : str
        The public key whose owner may change it from now on, as 64 hexadecimal digits; "" for that of `key`.

    Raises
    ------
    ValueError
        Where the budget before is another key's.
    """
    signed = dict(body)
    if key is not None:
        signed["owner_key"] = owner_key or key.public
        signed["signature"] = key.sign(digest_of(_of_budget(signed, chain)))
    elif owner_key:
        raise ValueError("Expected --sign-key with --owner-key: the owner's key signs whose the budget is from now on.")
    refuse_unsigned(signed, chain, held)
    return signed


def refuse_unsigned(body: Mapping[str, Any], chain: str, held: Standing | None) -> None:
    """ValueError for a budget's entry that its owner did not sign: the owner of the one before (`held`), or else its first."""
    before = "" if held is None else held.key
    key = before or str(body.get("owner_key", ""))
    if key and not is_signed(digest_of(_of_budget(body, chain)), str(body.get("signature", "")), key):
        raise ValueError(
            f"The budget of {body.get('label')!r} is changed only with the key {key[:16]}… of its owner: expected its --sign-key."
        )


def _of_budget(body: Mapping[str, Any], chain: str) -> dict[str, Any]:
    return {"budget": body["budget"], "spent": body.get("spent"), "owner_key": body.get("owner_key", ""), "after": chain}


def corrected(known: Known, now: str, keys: Sequence[SigningKey]) -> dict[str, Any]:
    """The body of an entry that corrects the log's time.

    Parameters
    ----------
    known : Known
        What is known of the log up to its last entry.
    now : str
        The right time.
    keys : sequence of SigningKey
        Of the owners of all budgets that expire and are signed.

    Raises
    ------
    ValueError
        Naming the budgets whose owner's key is missing.
    """
    signatures = {key.public: key.sign(digest_of(_of_time(now, known.chain))) for key in keys}
    body = {"time": now, "was": known.time, "signatures": signatures}
    refuse_uncorrected(body, known)
    return body


def refuse_uncorrected(body: Mapping[str, Any], known: Known) -> None:
    """ValueError for a correction that not all owners signed whose budgets it may reopen."""
    signatures: Mapping[str, Any] = body.get("signatures") or {}
    digest = digest_of(_of_time(str(body.get("time", "")), known.chain))
    for key, labels in known.keys_of_time.items():
        if not is_signed(digest, str(signatures.get(key, "")), key):
            raise ValueError(
                f"The time of a log is corrected only by the owners of its budgets that expire: expected the --sign-key "
                f"{key[:16]}… of {', '.join(map(repr, labels))}."
            )


def _of_time(time: str, chain: str) -> dict[str, Any]:
    return {"time": time, "after": chain}
