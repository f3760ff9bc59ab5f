"""Private training of a network: `PrivateTrainer`, the run that it starts or continues, and all that surrounds its steps."""
