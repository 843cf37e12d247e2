"""The training loop, its schedule, checkpoints and logs."""
