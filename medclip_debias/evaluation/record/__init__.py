"""The parts of ``results.json``: what each protocol writes, declared (docs/results.md)."""
