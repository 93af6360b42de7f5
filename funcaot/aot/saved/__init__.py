"""Programs as data: what ``runtime`` writes to a file and makes again without capturing."""
