"""The commands of `dperm`, one module each; every module here is found and its `register(app)` is called.

A command parses its options, calls the library and prints the result; it computes nothing itself. Its function takes one
argument named `asked`, a dataclass of options (`dperm.cli.options`), prints through `dperm.cli.printing`, and imports the
library inside its body, so that `dperm --help` starts quickly. `tests/cli/test_command_contract.py` reports what a new command
lacks.
"""
