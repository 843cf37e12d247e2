"""One file a layout; see `phantom_layouts.layout`."""
