"""Kinds of evidence about a pair, one a file, each found by being there."""
