"""The papers' studies: each a declarative grid, a runner, a figure and a page of findings."""
