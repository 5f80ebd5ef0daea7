//! Perfetto protobuf.
