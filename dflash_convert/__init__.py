"""dflash-convert."""
