"""Torch's operators for control flow, and the one of its algorithms that isn't a loop."""

from __future__ import annotations

from torch._higher_order_ops.associative_scan import associative_scan_op as ASSOCIATIVE_SCAN
from torch._higher_order_ops.associative_scan import generic_associative_scan
from torch._higher_order_ops.cond import cond_op as COND
from torch._higher_order_ops.map import map_impl as MAP
from torch._higher_order_ops.scan import scan_op as SCAN
from torch._higher_order_ops.while_loop import while_loop_op as WHILE_LOOP

__all__ = ["ASSOCIATIVE_SCAN", "COND", "MAP", "SCAN", "WHILE_LOOP", "generic_associative_scan"]
