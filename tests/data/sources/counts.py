"""What a source counted, by the words of its steps."""


def steps(source):
    """Every step's kept and all, by its name."""
    return {name: (kept, before) for name, _, kept, before in source.steps()}


def step(source, words):
    """Kept and all of the one step with these words in its name."""
    (counts,) = [counts for name, counts in steps(source).items() if words in name]
    return counts
