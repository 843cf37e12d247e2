"""The papers' studies: each a grid of cells, a measurement, a plot and a page of findings.

They stand on `medclip_debias.experiments` and are no part of the installed package.
"""
