"""Objectives, one idea a file: each file registers what is in it (`medclip_debias.registry`)."""
