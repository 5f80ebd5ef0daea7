//! What goes wrong inside of the importer, which knows places in a part of the text but not whose text it is.

/// Why an import stops.
#[derive(Debug)]
pub(super) enum Fault {
    /// At this byte of the text at hand.
    At {
        /// Where.
        offset: usize,
        /// What.
        problem: String,
    },
    /// The text as a whole is something else.
    NotATrace(String),
    /// It has times that the tape's clock cannot count.
    Times(String),
    /// From the sink.
    Sink(Box<dyn std::error::Error + Send + Sync>),
}

// As `Fault` is no `std::error::Error`, `?` turns the sink's errors, and only those, into it.
impl<E: std::error::Error + Send + Sync + 'static> From<E> for Fault {
    fn from(error: E) -> Fault {
        Fault::Sink(Box::new(error))
    }
}
