"""One file per input format, all yielding the records of `medclip_debias.data.records`."""
