"""Tools for tensors that every other room uses: nested batches, buffers that are used again, norms that are never understated,
the global random generators, and errors that name the line of the user's model.
"""
