"""Malformed files of every kind that a command reads: made of whole ones, each by a seed, and given to the commands.

As a script it works through a range of seeds in a process of its own, for a parser in C may take its process along:
`python malformed.py KIND FIRST COUNT FOLDER` prints one line of JSON for each file that is not answered as it should be.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import importlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["KINDS", "LOG", "TARGET", "answered", "command_line", "failures", "malformed", "whole", "whole_files"]

MOST_SECONDS = 10.0
MOST_MEMORY = 2 << 30  # bytes of address space beyond what the process had: more is a memory bomb
TARGET = "y"
REFUTED = 3  # exit code of `dperm audit`
LOG = "spend.db"  # as it was when the head was taken
_HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1.5, -0.0, 1e308, 5e-324, 10**19, 10**400, -(10**25), "", "x", "NaN", "-1", "\x1b[2J", "a\nb", "‮x",
    "9" * 30, [], {}, [[]], [None], {"": {}}, [0] * 50, "Gaussian", "SelfComposed", ["a", "a"], {"type": "Gaussian"},
]  # fmt: skip
_TOKENS = [
    b"\x00",
    b"\xff" * 4,
    b"\xff" * 8,
    b"\x80\x00\x00\x00",
    b"9" * 20,
    b"9" * 400,
    b"1e999",
    b"-1e-999",
    b"nan",
    b"inf",
    b'"',
    b"'",
    b",",
    b";",
    b"\t",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b":",
    b"-",
    b"=",
    b"<",
    b">",
    b"&x;",
    b"]",
    b"{",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\x1b[2J",
    b"\xe2\x80\xae",
    b"0x10",
    b"1_000",
    b"PK\x03\x04",
    b"PAR1",
    b"1970-01-01",
    b"99999-12-31",
    b"<!DOCTYPE x [<!ENTITY x 'y'>]>",
]


def whole_files(folder: Path) -> dict[str, Path]:
    """One good file of each kind, and what the commands need beside them: a table, its schema, a model of it, a head."""
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    from pyarrow import feather, parquet

    from dperm.privacy import Certificate, Gaussian
    from helpers.commands import dperm

    rng = np.random.default_rng(0)
    size = 60
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, size),
            "pay": rng.lognormal(8, 1, size).round(2),
            "job": rng.choice(["clerk", "smith", "nurse"], size),
            "since": (pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, size), unit="D")).strftime("%Y-%m-%d"),
            TARGET: rng.choice(["no", "yes"], size),
        }
    )
    found = {kind: folder / f"whole.{ending}" for kind, (ending, _, _) in KINDS.items()}
    frame.to_csv(found["csv"], index=False)
    found["gz"].write_bytes(gzip.compress(found["csv"].read_bytes()))
    with zipfile.ZipFile(found["zip"], "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(found["csv"], "t.csv")
    parquet.write_table(pa.Table.from_pandas(frame, preserve_index=False), found["parquet"])
    found["types"].write_bytes(found["parquet"].read_bytes())
    feather.write_feather(frame, found["arrow"])
    frame.to_excel(found["xlsx"], index=False)
    numbers = np.column_stack([rng.normal(size=(size, 4)), rng.integers(0, 2, size)])
    np.save(found["npy"], numbers)
    np.savez_compressed(found["npz"], X=numbers[:, :-1], y=numbers[:, -1])
    found["libsvm"].write_text("".join(f"{row[-1]:g} 1:{row[0]:.3f} 3:{row[1]:.3f}\n" for row in numbers))
    dperm("data", "propose", found["csv"], "--target", TARGET, "-o", found["schema"])
    dperm("data", "confirm", found["schema"])
    dperm("keygen", found["private"])
    found["key"].write_bytes(found["private"].with_name(found["private"].name + ".pub").read_bytes())
    signed = ("--sign-key", found["private"])
    dperm("train", found["csv"], "--schema", found["schema"], "--mechanism", "output", *signed, "-o", found["model"])
    dperm("budget", "head", *signed, "-o", found["head"])
    shutil.copy(os.environ["DPERM_SPEND_LOG"], folder / LOG)
    found["certificate"].write_text(Certificate.issue(mechanism="m", event=Gaussian(2.0), delta=1e-5).to_json())
    event = json.loads(found["model"].read_text())["certificate"]["event"]
    found["event"].write_text(json.dumps(event))
    found["plan"].write_text(json.dumps([{"times": 3, "event": event}, {"event": Gaussian(2.0).to_dict()}]))
    dperm("audit", found["model"], "--trials", "20", "-o", found["audit"])
    line = {"id": "a", "label": "t", "mechanism": "m", "event": event, "time": "2026-01-01T00:00:00Z"}
    found["lines"].write_text(json.dumps(line) + "\n" + json.dumps({**line, "id": "b"}) + "\n")
    return found


def _cut(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] if rng.random() < 0.7 else data[place:]


def _flip(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        if out:
            out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


def _put(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.choice(_TOKENS) + data[place + rng.choice([0, 0, 1, 4, 20]) :]


def _doubled(data: bytes, rng: random.Random) -> bytes:
    first, last = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:last] + data[first:last] * rng.choice([1, 1, 30]) + data[last:]


def _taken_out(data: bytes, rng: random.Random) -> bytes:
    first, last = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:first] + data[last:]


def _bytes(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        data = rng.choice([_cut, _flip, _flip, _put, _put, _put, _doubled, _taken_out])(data, rng)
    return data


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Where a value stands in tables and lists, the whole left out."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        each = waiting.pop()
        items = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
        for name, inner in items:
            found.append((each, name))
            waiting.append(inner)
    return found


def _json(data: bytes, rng: random.Random) -> bytes:
    """Another value somewhere in the tables, with the digests that this needs; or other bytes."""
    from dperm.privacy.certificates.signing import digest_of

    if rng.random() < 0.3:
        return _bytes(data, rng)
    value = json.loads(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        if not (places := _places(value)):
            break
        table, name = rng.choice(places)
        kind = rng.random()
        if kind < 0.7:
            table[name] = copy.deepcopy(rng.choice(_HOSTILE))
        elif kind < 0.8:
            table[name] = [table[name]] if rng.random() < 0.5 else {"type": table[name]}
        elif kind < 0.9 and isinstance(table, dict):
            table[rng.choice(["x", "", "type", "events", name + "s"])] = table.pop(name)
        else:
            del table[name]
    with contextlib.suppress(ValueError, TypeError, KeyError):
        for stamped in (value["certificate"], value) if "certificate" in value else (value,):
            if "digest" in stamped:
                stamped["digest"] = digest_of(
                    {name: each for name, each in stamped.items() if name not in ("digest", "signature")}
                )
    return json.dumps(value).encode()


def _lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines()
    place = rng.randrange(len(lines))
    lines[place] = _json(lines[place], rng)
    return b"\n".join(lines)


def _gz(data: bytes, rng: random.Random) -> bytes:
    return _bytes(data, rng) if rng.random() < 0.5 else gzip.compress(_bytes(gzip.decompress(data), rng))


def _zip(data: bytes, rng: random.Random) -> bytes:
    """Other bytes of the archive, or of one of its files; for workbooks and NumPy's archives, too."""
    if rng.random() < 0.3:
        return _bytes(data, rng)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        names = archive.namelist()
        chosen = rng.choice([name for name in names if "sheet" in name] or names) if rng.random() < 0.7 else rng.choice(names)
        for name in names:
            inner = archive.read(name)
            if name == chosen:
                inner = _header(inner, rng) if inner.startswith(b"\x93NUMPY") and rng.random() < 0.6 else _bytes(inner, rng)
            made.writestr(name, inner)
    return out.getvalue()


def _header(data: bytes, rng: random.Random) -> bytes:
    """NumPy's own file with another type or shape."""
    if rng.random() < 0.4:
        return _bytes(data, rng)
    kinds = [b"'<f8'", b"'|O'", b"'<c16'", b"'<M8[ns]'", b"'<U5'", b"'|S3'", b"'|b1'", b"'<f2'", b"'|V8'", b"[('a', '<f8')]"]
    kinds += [b"'<u8'", b"'<m8[s]'", b"'|V0'", b"'<U0'"]
    shapes = [b"(60, 5)", b"(300,)", b"()", b"(0, 5)", b"(60, 0)", b"(5, 60)", b"(3, 20, 5)", b"(99999999999, 5)", b"(-1, 5)"]
    made = b"{'descr': %s, 'fortran_order': %s, 'shape': %s, }" % (
        rng.choice(kinds),
        rng.choice([b"False", b"True"]),
        rng.choice(shapes),
    )
    length = 128 - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + made.ljust(length - 1)[: length - 1] + b"\n" + data[128:]


def _odd_types(_: bytes, rng: random.Random) -> bytes:
    """A Parquet file whose columns have types that few tables have."""
    import datetime
    import decimal

    import pyarrow as pa
    from pyarrow import parquet

    def column() -> pa.Array:
        some = [
            ([[1], [2, 3], None], None),
            ([{"a": 1}, {"a": 2}, None], None),
            ([[("k", 1)], None, []], pa.map_("string", "int64")),
            ([b"a", b"\xff\x00", None], None),
            ([b"ab", b"cd", None], pa.binary(2)),
            ([1, 2, None], pa.duration("ns")),
            ([1, 2**60, None], pa.timestamp("us")),
            ([1, -(2**60), 5], pa.timestamp("us", tz="UTC")),
            ([datetime.datetime(9999, 12, 31), None, datetime.datetime(1, 1, 1)], None),
            ([datetime.time(1, 2), None, datetime.time(3)], None),
            ([1, 2**30, None], pa.date32()),
            ([2**64 - 1, 0, None], pa.uint64()),
            ([2**53 + 1, 2**53, -(2**63)], None),
            ([decimal.Decimal("1.5"), decimal.Decimal("9" * 40), None], None),
            ([None, None, None], pa.null()),
            ([True, False, None], None),
            ([1.5, float("inf"), float("nan")], pa.float16()),
            ([1e308, -1e308, 5e-324], None),
            (["a\x1b[2J", "b\nc", "\u202e"], None),
            (["9" * 30, "1e999", "-"], None),
            (["2020-01-01", "99999-99-99", ""], None),
            (["no", "yes", "no"], pa.dictionary(pa.int8(), pa.string())),
            (["no", "yes", "no"], None),
            ([20, 30, 40], None),
        ]
        values, kind = rng.choice(some)
        return pa.array(values * 20, kind)

    names = ["age", "pay", "job", "since", TARGET, "\x1b]0;x\x07", "", " ", "a\nb", "__index_level_0__"]
    out = pa.BufferOutputStream()
    columns = {name: column() for name in names if rng.random() < (0.95 if name in names[:5] else 0.2)}
    parquet.write_table(pa.table(columns), out)
    return out.getvalue().to_pybytes()


_TABLE = (
    ("data", "propose", "FILE", "--target", TARGET, "-o", "OUT"),
    ("train", "FILE", "--schema", "SCHEMA", "--mechanism", "output", "-o", "OUT"),
    ("train", "FILE", "--schema", "SCHEMA", "--dry-run"),
    ("predict", "MODEL", "FILE", "--on-error", "skip", "-o", "OUT"),
    ("evaluate", "MODEL", "FILE", "--test-data", "private"),
    ("data", "check", "FILE", "--schema", "SCHEMA"),
)
_ARRAY = (
    ("train", "FILE", "--accept-proposed", "--mechanism", "output", "-o", "OUT"),
    ("train", "FILE", "--accept-proposed", "--dry-run"),
    ("data", "check", "FILE"),
)
_CERTIFIED = (
    ("account", "--event", "FILE"),
    ("card", "FILE", "-o", "OUT"),
    ("registry", "FILE", "--name", "a", "--curator", "b", "--intended-use", "c", "--region", "d", "-o", "OUT"),
    ("budget", "create", "a", "--epsilon", "9", "--plan", "FILE"),
)
Mutation = Callable[[bytes, random.Random], bytes]
#: The ending of each kind's name, how it is malformed, and the commands that read it.
KINDS: dict[str, tuple[str, Mutation, tuple[tuple[str, ...], ...]]] = {
    "model": (
        "model.json",
        _json,
        (
            ("predict", "FILE", "TABLE", "-o", "OUT"),
            ("effects", "FILE", "-o", "OUT"),
            ("audit", "FILE", "--trials", "20", "-o", "OUT"),
            *_CERTIFIED,
        ),
    ),
    "schema": (
        "schema.json",
        _json,
        (
            ("train", "TABLE", "--schema", "FILE", "--mechanism", "output", "-o", "OUT"),
            ("train", "TABLE", "--schema", "FILE", "--dry-run"),
            ("data", "show", "FILE"),
            ("data", "check", "TABLE", "--schema", "FILE"),
        ),
    ),
    "certificate": ("certificate.json", _json, _CERTIFIED),
    "event": (
        "event.json",
        _json,
        (("account", "--event", "FILE"), ("budget", "create", "a", "--epsilon", "9", "--plan", "FILE")),
    ),
    "plan": ("plan.json", _json, (("budget", "create", "a", "--epsilon", "9", "--plan", "FILE"),)),
    "head": ("head.json", _json, (("budget", "verify", "FILE"), ("budget", "verify", "FILE", "--verify-key", "KEY"))),
    "audit": ("audit.json", _json, (("card", "MODEL", "--audit", "FILE", "-o", "OUT"),)),
    "lines": ("lines.jsonl", _lines, (("budget", "import", "FILE"),)),
    "key": ("key.pem", _bytes, (("predict", "MODEL", "TABLE", "--verify-key", "FILE", "-o", "OUT"),)),
    "private": ("private.pem", _bytes, (("train", "TABLE", "--schema", "SCHEMA", "--sign-key", "FILE", "-o", "OUT"),)),
    "csv": ("csv", _bytes, _TABLE),
    "gz": ("csv.gz", _gz, _TABLE),
    "zip": ("csv.zip", _zip, _TABLE),
    "parquet": ("parquet", _bytes, _TABLE),
    "types": ("types.parquet", _odd_types, _TABLE),
    "arrow": ("arrow", _bytes, _TABLE),
    "xlsx": ("xlsx", _zip, _TABLE),
    "npy": ("npy", _header, _ARRAY),
    "npz": ("npz", _zip, _ARRAY),
    "libsvm": ("libsvm", _bytes, (*_ARRAY, ("train", "FILE", "--indices", "1-3", "--mechanism", "output", "-o", "OUT"))),
}


def malformed(kind: str, seed: int, whole: bytes) -> tuple[bytes, tuple[str, ...]]:
    """A file of this kind, and the command that is to read it."""
    _, change, commands = KINDS[kind]
    rng = random.Random(f"{kind} {seed}")
    return change(whole, rng), rng.choice(commands)


def answered(command: list[str]) -> tuple[int, str, float, str]:
    """Exit code, what was said, seconds, and the trace of whatever got out of the command or reached its last door."""
    from dperm.cli import main

    out, err, code, trace = io.StringIO(), io.StringIO(), 0, ""
    before, argv, start = signal.getsignal(signal.SIGINT), sys.argv, time.monotonic()
    sys.argv = ["dperm", *command]
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            warnings.simplefilter("default")
            main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        trace = traceback.format_exc()
    finally:
        sys.argv = argv
        signal.signal(signal.SIGINT, before)
    return code, out.getvalue() + err.getvalue(), time.monotonic() - start, trace


def whole(kind: str, folder: Path) -> Path:
    """The good file of a kind."""
    return folder / f"whole.{KINDS[kind][0]}"


def command_line(kind: str, command: Sequence[str], folder: Path, file: Path) -> list[str]:
    """The words of a command that reads `file`, and good ones beside it."""
    names = {"SCHEMA": "schema", "MODEL": "model", "TABLE": "csv", "KEY": "key"}
    paths = {word: whole(other, folder) for word, other in names.items()} | {"FILE": file, "OUT": folder / f"out-{kind}"}
    return [str(paths.get(word, word)) for word in command]


def own_log(folder: Path, name: str) -> Path:
    """A spend log as the head was taken of, under a name of its own: one that is set back is refused, rightly."""
    path = folder / f"log-{name}.db"
    shutil.copy(folder / LOG, path)
    os.environ["DPERM_SPEND_LOG"] = str(path)
    return path


def _charges() -> int:
    from dperm.release import SpendLog

    return len(SpendLog.current().charges())


def failures(kind: str, first: int, count: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Those of the kind's files that a command answers by a traceback, a fault of its own, a charge without a result, many lines
    or after too long."""
    data_of_whole = whole(kind, folder).read_bytes()
    file = folder / f"given-{kind}.{KINDS[kind][0]}"
    for seed in range(first, first + count):
        data, command = malformed(kind, seed, data_of_whole)
        file.write_bytes(data)
        log = own_log(folder, f"{kind}-{seed}")
        before = _charges()
        code, said, seconds, trace = answered(command_line(kind, command, folder, file))
        charged = _charges() - before
        log.unlink()
        wrong = {
            "traceback": bool(trace) or "Traceback" in said,
            "a fault of dperm's own": "fault of dperm" in said,
            "slow": seconds > MOST_SECONDS,
            "charged": code not in (0, REFUTED) and charged > 0,
            "no line": code == 1 and said.count("error: ") < 1,
            "many lines": code == 1 and len(said.split("error: ", 1)[-1].strip().splitlines()) != 1,
            "control characters": any(not sign.isprintable() and sign != "\n" for sign in said),
        }
        if any(wrong.values()):
            found = [what for what, holds in wrong.items() if holds]
            yield {"seed": seed, "command": command, "wrong": found, "said": said[-600:], "trace": trace[-1500:]}


def main(kind: str, first: str, count: str, folder: str) -> None:
    import faulthandler

    faulthandler.enable()
    answered(["--version"])
    for module in ("dperm.data", "dperm.estimators", "dperm.release"):  # now: later it would count against the limit of memory
        importlib.import_module(module)

    with tempfile.TemporaryDirectory() as own:
        os.environ["XDG_STATE_HOME"] = own
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MOST_MEMORY,) * 2)
        for failure in failures(kind, int(first), int(count), Path(folder)):
            print(json.dumps(failure), flush=True)
    print(json.dumps({"done": int(count)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
