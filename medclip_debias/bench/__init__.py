"""The benchmark: tasks of the field as cards, run on any model, with results to add to."""
