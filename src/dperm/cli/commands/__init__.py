"""The commands of `dperm`, one file each: every file here is found (`dperm.cli.command_files`).

A file's one public function is the command of that name; a file with several, none of which is called as the file, is a group.
A command takes one frozen dataclass of options (`dperm.cli.options` has those that several share), calls the library, prints the
result through `dperm.cli.printing` and computes nothing itself. It imports the library inside its body, so that `dperm --help`
starts quickly. `tests/cli/test_command_contract.py` reports what a new command lacks.
"""
