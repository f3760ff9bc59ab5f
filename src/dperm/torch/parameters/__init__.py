"""The trainable parameters of a model: as one flat vector, sharded over ranks (FSDP), and moved by an optimiser.

Other rooms read and write θ through `FlatParameters`. `TorchOptimizer` adapts any torch optimiser to a plan's update.
"""
