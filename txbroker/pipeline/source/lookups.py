"""
Passes values of this process into a query, by key.

All values are one literal. A condition for each key (a zone, a file, a node) would deepen the plan.
Spark would then need minutes for it, or die of a StackOverflowError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column


def looked_up(values: Mapping[str, Any], kind: str, key: Column) -> Column:
    """Return the value at `key`, of Spark's type `kind`; null for an unknown key."""
    from pyspark.sql import functions as F

    pairs = F.from_json(F.lit(json.dumps(values)), f"map<string,{kind}>")
    return F.try_element_at(pairs, key)
