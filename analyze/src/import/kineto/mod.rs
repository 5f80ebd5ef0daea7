//! PyTorch profiler traces: the Chrome JSON that Kineto writes, in the shapes it had from 2021 to 2026.
//!
//! `docs/import.md` says what becomes of each thing in the file. The way through this module is: `pieces` (the text, cut
//! where events begin), `read` (each piece on a thread of its own), `json` (a walk over a piece, event by event),
//! `collect` (each event becomes one of the `records`), `assemble` and `join` (the pieces become one again, in order),
//! `stacks` (what each thread was in), `write` (launch and kernel joined, everything in order of time into the sink).

mod arguments;
mod assemble;
mod category;
mod collect;
mod devices;
mod error;
mod join;
mod json;
mod mend;
mod names;
mod pieces;
mod read;
mod records;
mod stacks;
mod time;
mod write;

use std::sync::atomic::Ordering;

use ktape_format::Sink;

use assemble::{Assembler, Position};
use error::Fault;
use pieces::{Cutter, PIECE_BYTES};
use write::Writer;

pub(in crate::import) use arguments::{DERIVED, IDS};

use super::source::{Text, is_of_the_packing};
use super::{ImportError, Options, Progress, Summary};

/// Imports the JSON text of a trace into `sink`. `name` is what the file is called, in the tape and in errors.
pub fn import_bytes<S: Sink>(
    text: &[u8],
    name: &str,
    sink: &mut S,
    options: &Options,
    progress: impl FnMut(Progress),
) -> Result<Summary, ImportError> {
    import_text(Text::of_bytes(text, name), PIECE_BYTES, sink, options, progress)
}

/// Imports a trace.
pub(super) fn import<S: Sink>(
    text: Text<'_>,
    sink: &mut S,
    options: &Options,
    progress: impl FnMut(Progress),
) -> Result<Summary, ImportError> {
    import_text(text, PIECE_BYTES, sink, options, progress)
}

fn import_text<S: Sink>(
    text: Text<'_>,
    piece_bytes: usize,
    sink: &mut S,
    options: &Options,
    mut progress: impl FnMut(Progress),
) -> Result<Summary, ImportError> {
    let Text { path, reader, unpacked, done_bytes, file_bytes } = text;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let mut assembler = Assembler::new(sink, options.lenient);
    let ended = read::pieces(Cutter::new(reader, piece_bytes), options.lenient, |piece| {
        assembler.piece(piece)?;
        progress(Progress { done_bytes: done_bytes.load(Ordering::Relaxed), total_bytes: file_bytes });
        Ok(())
    });
    let good_events = assembler.events();
    let outcome = match ended {
        Ok(read::Ended { text_bytes, error: Some(source) }) => match is_of_the_packing(&source) && unpacked {
            true if options.lenient => assembler.end(Some(format!("gzip is damaged or cut off: {source}"))),
            true => return Err(ImportError::Gzip { path, unpacked_bytes: text_bytes, good_events, source }),
            false => return Err(ImportError::Read { path, source }),
        },
        Ok(read::Ended { error: None, .. }) => assembler.end(None),
        Err(fault) => Err(fault),
    };
    let outcome = match outcome {
        Ok(()) => {
            let (sink, records, summary) = assembler.finish();
            return Writer::write(sink, &name, records, summary).map_err(|fault| match fault {
                Fault::Sink(source) => ImportError::Sink { path, source },
                Fault::NotATrace(found) | Fault::At { problem: found, .. } => ImportError::NotATrace { path, found },
            });
        }
        Err(fault) => fault,
    };
    Err(match outcome {
        Fault::At { offset, problem } => {
            let (good_events, Position { offset, line, column }) = (assembler.events(), assembler.position(offset));
            ImportError::Malformed { path, offset, line, column, unpacked, good_events, problem }
        }
        Fault::NotATrace(found) => ImportError::NotATrace { path, found },
        Fault::Sink(source) => ImportError::Sink { path, source },
    })
}
