//! What a sampling profiler would have seen.
