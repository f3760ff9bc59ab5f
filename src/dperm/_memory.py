"""Main memory that this process can still allocate, within the limits of the machine and of its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

#: Files of a control group: its limit, what it uses, and the name in `memory.stat` of what the kernel would give back.
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def free_memory(root: Path = Path("/")) -> float:
    """Bytes that this process can still allocate: the smallest amount that the machine or any of its control groups leaves.

    Parameters
    ----------
    root : Path
        Folder that holds the file systems `proc` and `sys`.

    Returns
    -------
    float
        Infinite where the platform does not say.
    """
    return min([_of_machine(root), *_of_control_groups(root)])


def _of_machine(root: Path) -> float:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return 1024.0 * int(line.split()[1])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def _of_control_groups(root: Path) -> Iterator[float]:
    """Bytes that each control group with a limit still leaves, for the process's own groups and all of their parents."""
    mounted = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder, files = (mounted / "memory", _VERSION_1) if controllers else (mounted, _VERSION_2)
        group = PurePosixPath(path)
        # in a container, what is mounted may be the process's own group, which its path then does not lead to
        for each in (group, *group.parents):
            left = _left(folder / each.relative_to("/"), *files)
            if left is not None:
                yield left


def _left(group: Path, limit: str, used: str, given_back: str) -> float | None:
    """Bytes that one control group still leaves; None for a group that has no limit or does not exist."""
    most, taken = _text(group / limit).strip(), _text(group / used).strip()
    if not (most.isdigit() and taken.isdigit()):
        return None
    cached = sum(int(line.split()[1]) for line in _text(group / "memory.stat").splitlines() if line.split()[0] == given_back)
    return max(0.0, float(int(most) - int(taken) + cached))


def _text(path: Path) -> str:
    """What the file holds; nothing where it is not there or cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
