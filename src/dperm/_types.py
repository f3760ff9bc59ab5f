"""Types that the whole package uses."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
