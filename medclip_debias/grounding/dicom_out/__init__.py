"""A model's results as files that a PACS or another program takes: SR, SEG, JSON."""
