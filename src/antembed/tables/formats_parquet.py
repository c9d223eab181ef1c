"""Parquet: the columns word (or id), vector, and bias."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from antembed.files import replacing
from antembed.tables.formats_named import Named

if TYPE_CHECKING:
    import polars as pl
    from polars._typing import PolarsDataType


def write_parquet(named: Named, out: Path) -> list[Path]:
    """For polars, pandas, DuckDB, Spark."""
    import polars as pl
    from polars.io.plugins import register_io_source

    vector = pl.Array(pl.Float32, named.table.embedding_dim)
    label = "id" if named.words is None else "word"
    schema: dict[str, PolarsDataType] = {label: pl.Int64 if named.words is None else pl.String, "vector": vector}
    schema |= {"bias": pl.Float32} if named.has_bias else {}

    def frame(ids: np.ndarray) -> "pl.DataFrame":
        columns = {label: ids if named.words is None else named.names(ids), "vector": named.table[ids]}
        columns |= {"bias": named.table.bias_of(ids)} if named.has_bias else {}
        return pl.DataFrame(columns, schema=schema)

    def frames(columns: object, predicate: object, rows: int | None, batch: int | None) -> "Iterator[pl.DataFrame]":
        return map(frame, named.pieces())  # written whole: nothing is selected

    with replacing(out) as file:
        register_io_source(frames, schema=schema).sink_parquet(file)
    return [out]
