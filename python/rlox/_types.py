"""Type aliases of NumPy arrays."""

from typing import Any

import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]
Array = npt.NDArray[Any]
