"""Protocols of an evaluation, one a file: each file registers what is in it."""
