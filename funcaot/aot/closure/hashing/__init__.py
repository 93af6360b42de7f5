"""Which objects code tells apart by a hash."""
