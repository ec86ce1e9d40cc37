"""Type aliases of NumPy arrays and observations, and names of dtypes."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
# Observations of any space: dicts for Dict spaces, tuples for Tuple spaces, else arrays.
Obs: TypeAlias = npt.ArrayLike | Mapping[str, "Obs"] | tuple["Obs", ...]
# Names of the dtypes in replay buffers, by the native names.
BUFFER_DTYPES = {"f32": "float32", "f64": "float64", "i64": "int64", "u8": "uint8", "bool": "bool"}
