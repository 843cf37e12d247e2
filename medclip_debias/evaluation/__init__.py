"""The three protocols of the paper: zero-shot, phrase grounding, retrieval; with intervals."""
