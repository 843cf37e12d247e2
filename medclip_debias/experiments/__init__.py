"""A grid of settings, methods and seeds on any prepared set: measured once, compared in pairs."""
