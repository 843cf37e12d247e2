"""What comes in: sources, the prepared set, the phantom, batches."""
