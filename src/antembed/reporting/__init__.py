"""Records → tables."""

from antembed.reporting.records import append_record, read_records, surroundings

__all__ = ["append_record", "read_records", "surroundings"]
