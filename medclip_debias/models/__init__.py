"""Encoders of images and sentences, the similarity between them, and the model folder."""
