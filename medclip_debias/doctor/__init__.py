"""What is looked at before a long run: the machine, the data, a step and what it costs."""
