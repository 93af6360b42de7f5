"""What a check tries: a file for each kind of row; ``check.rows`` puts them in order."""
