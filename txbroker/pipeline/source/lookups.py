"""
Values of this process by their keys, in a query.

They are one literal, however many there are. A condition for each (of a zone, a file, a node) would
make the plan deeper by each, until Spark needs minutes for it or dies of a StackOverflowError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column


def looked_up(values: Mapping[str, Any], kind: str, key: Column) -> Column:
    """The value at `key`, of Spark's type `kind`; null where there is none."""
    from pyspark.sql import functions as F

    pairs = F.from_json(F.lit(json.dumps(values)), f"map<string,{kind}>")
    return F.try_element_at(pairs, key)
