"""What a model found, as objects that a PACS or a clinical system takes: SR, SEG, JSON."""
