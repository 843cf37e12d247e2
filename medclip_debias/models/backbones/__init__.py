"""Image encoders, one family a file; each registers the architectures that it builds."""
