"""pandas, or, where it is not installed, the little of it that antembed uses: antembed never imports it."""

import importlib.util

import numpy as np


class _Series:
    __module__ = "pandas.core.series"
    ndim = 1

    def __init__(self, values):
        self._values = list(values)

    def __iter__(self):
        return iter(self._values)

    def __len__(self):
        return len(self._values)

    def to_numpy(self, dtype=None):
        array = np.empty(len(self), object)
        array[:] = self._values
        texts = any(isinstance(value, str) or value is None for value in self._values)
        return array if texts or dtype is object else np.array(self._values)

    def isna(self):
        return np.array([value is None or value != value for value in self._values])


class _DataFrame:
    __module__ = "pandas.core.frame"
    ndim = 2

    def __init__(self, columns):
        self._columns = {name: _Series(values) for name, values in columns.items()}
        self.columns = list(columns)

    def __getitem__(self, name):
        return _DataFrame({n: self._columns[n] for n in name}) if isinstance(name, list) else self._columns[name]

    def __len__(self):
        return len(next(iter(self._columns.values())))

    def __iter__(self):
        return iter(self.columns)


if importlib.util.find_spec("pandas"):
    from pandas import DataFrame, Series
else:
    DataFrame, Series = _DataFrame, _Series
