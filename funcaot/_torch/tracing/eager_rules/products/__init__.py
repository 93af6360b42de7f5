"""Products of matrices that torch's symbolic versions refuse, or make another program each time."""
