"""The benchmark: the field's tasks as cards, run on any model; results that others can add to."""
