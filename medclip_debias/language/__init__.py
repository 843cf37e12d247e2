"""Masked language models of report sentences, and the probabilities they give."""
