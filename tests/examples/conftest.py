"""
The example is a set of scripts, not an installed package: its folder goes on the path here.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "examples" / "home_topology"))
