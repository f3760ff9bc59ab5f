"""What printed certificates say, however their lines are broken."""

from __future__ import annotations


def flat(printed: object) -> str:
    """The text with a single space wherever there is white space, such as where a line ends."""
    return " ".join(str(printed).split())


def statements(printed: object) -> list[str]:
    """The statements of a printed certificate, each on one line: those begin at the margin, and their further lines do not."""
    found: list[str] = []
    for line in str(printed).splitlines():
        if line.startswith(" "):
            found[-1] += " " + line.strip()
        else:
            found.append(line)
    return found
