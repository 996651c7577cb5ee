"""Types of the arrays that hold vectors and their bytes."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float32]
ByteArray: TypeAlias = NDArray[np.uint8]
