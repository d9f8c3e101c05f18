"""Studies: a declared grid of requests, each planned in full by an engine, kept in a journal and in Parquet."""
