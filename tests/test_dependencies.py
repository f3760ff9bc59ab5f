"""What `make setup` installs has the versions of constraints.txt, and a hash."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)(.*(?:\n .*)*)", re.M)


def _named(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pinned(name: str) -> dict[str, tuple[str, str]]:
    """By package, its version and what follows it."""
    return {_named(package): (version, rest) for package, version, rest in _PINNED.findall((ROOT / name).read_text("utf-8"))}


def test_every_file_has_a_hash_and_the_version_that_is_stated() -> None:
    hashed, stated = _pinned("requirements.txt"), _pinned("constraints.txt")
    assert len(hashed) > 90
    assert [name for name, (version, _) in hashed.items() if stated.get(name, ("none", ""))[0] != version] == []
    assert [name for name, (_, rest) in hashed.items() if not re.search(r"--hash=sha256:[0-9a-f]{64}", rest)] == []


def test_nothing_but_torch_and_dperm_itself_is_installed_without_a_hash() -> None:
    """Of what dperm and its tests need here, by what the installed packages say of themselves."""
    hashed = _pinned("requirements.txt")
    waiting, needed = [Requirement("dperm[test,torch]")], set[str]()
    while waiting:
        asked = waiting.pop()
        if str(asked) in needed:
            continue
        needed.add(str(asked))
        if asked.name == "torch":  # its builds need other libraries on other machines
            continue
        for requirement in map(Requirement, metadata.requires(asked.name) or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*asked.extras, "")):
                requirement.marker = None
                waiting.append(requirement)
    without = {_named(Requirement(text).name) for text in needed} - set(hashed)
    assert without == {"dperm", "torch"}
