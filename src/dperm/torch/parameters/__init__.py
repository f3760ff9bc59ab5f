"""The trainable parameters: as one flat vector, or sharded over ranks; their optimiser; and which of them a run has moved."""
