"""The benchmark: the tasks of the field as cards, any model, results that others can add to."""
