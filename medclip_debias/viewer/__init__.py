"""The viewer: a web page that shows where a model sees sentences (docs/viewer.md)."""
