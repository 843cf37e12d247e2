"""Reports of a run that can be read without this program."""
