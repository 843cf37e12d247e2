"""Policies on negatives, one idea a file: each file registers what is in it."""
