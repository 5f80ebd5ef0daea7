//! What comes in. An importer produces the same events as a collector and writes them into any `ktape_format::Sink`.

pub mod kineto;
