"""A module whose name begins like one of Python's, and which counts."""

count = 0


def counted() -> int:
    global count
    count += 1
    return count
