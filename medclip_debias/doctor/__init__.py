"""The checks before a long run: the machine, the data, a step and what it costs."""
