"""Sizes that may be symbolic, with the numbers and shape environments behind them."""
