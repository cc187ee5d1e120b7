"""How many moments of a run the tests strike at."""

import os
from typing import Final

VARIABLE: Final = "DRIVER_TEST_MOMENTS"


def moments(usual: int) -> int:
    """So many moments, evenly spread over a run; as many as DRIVER_TEST_MOMENTS says where that is set."""
    return int(os.environ.get(VARIABLE) or usual)
