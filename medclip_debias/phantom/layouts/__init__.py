"""One file a layout; see `medclip_debias.phantom.layout`."""
