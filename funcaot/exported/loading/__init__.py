"""What a loaded artifact does with a call: ``load`` puts it together."""
