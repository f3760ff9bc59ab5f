"""Tools for tensors without privacy logic: nested batches, reused buffers, global random generators, and error messages.

This is the lowest room of `dperm.torch`: it imports none of the others, and all of them may import it.
"""
