"""`dperm`, and `python -m dperm`."""

import gc
import sys


def main() -> None:
    """Run the command line; one line and exit code 1 where what it needs is not installed."""
    gc.set_threshold(300_000)  # what loads makes objects that stay: to look through them all, again and again, takes a tenth
    try:
        from dperm.cli import main as run
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}")
    run()


if __name__ == "__main__":
    main()
