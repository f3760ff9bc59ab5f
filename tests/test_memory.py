"""Item 15: how much memory is free, within the control groups that a process is in: of both versions, as trees of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from dperm._memory import free_memory

MACHINE = 8_000_000 * 1024


def tree(root: Path, files: dict[str, str]) -> Path:
    """A system's files below `root`: with 8 GB available to the machine as a whole."""
    for name, text in {"proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable:  8000000 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


SECOND = {
    "proc/self/cgroup": "0::/user/job\n",
    "sys/fs/cgroup/user/job/memory.max": "max\n",
    "sys/fs/cgroup/user/job/memory.current": "100\n",
    "sys/fs/cgroup/user/memory.max": "1000000\n",
    "sys/fs/cgroup/user/memory.current": "700000\n",
    "sys/fs/cgroup/user/memory.stat": "anon 500000\ninactive_file 200000\nactive_file 7\n",
}
FIRST = {
    "proc/self/cgroup": "9:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/\n",
    "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "2000000\n",
    "sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes": "1500000\n",
    "sys/fs/cgroup/memory/docker/1/memory.stat": "inactive_file 1\ntotal_inactive_file 100000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "1500000\n",
}
#: in a container the group's own files are mounted where the root's would be
MOUNTED = {
    "proc/self/cgroup": "0::/../elsewhere\n",
    "sys/fs/cgroup/memory.max": "300000\n",
    "sys/fs/cgroup/memory.current": "900000\n",
}


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, MACHINE),
        ({"proc/self/cgroup": "0::/\n"}, MACHINE),
        (SECOND, 1_000_000 - 700_000 + 200_000),
        (FIRST, 2_000_000 - 1_500_000 + 100_000),
        (MOUNTED, 0),
        (SECOND | {"sys/fs/cgroup/user/job/memory.max": "400\n"}, 300),
        (SECOND | {"proc/meminfo": "MemAvailable: 1 kB\n"}, 1024),
    ],
    ids=["none", "root", "second", "first", "mounted", "own", "machine"],
)
def test_a_control_groups_limit_counts(tmp_path: Path, files: dict[str, str], left: int) -> None:
    assert free_memory(tree(tmp_path, files)) == left


def test_a_platform_without_such_files_says_what_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_AVPHYS_PAGES": 7, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert free_memory(tmp_path) == 7 * 4096

    def unknown(_: str) -> int:
        raise ValueError

    monkeypatch.setattr("os.sysconf", unknown)
    assert free_memory(tmp_path) == float("inf")
