"""Everything that decides what to try next."""
