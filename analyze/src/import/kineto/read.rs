//! The text is read on all cores: one thread unpacks it and cuts it into pieces, the others read a piece each, and
//! what they found comes back in the text's order.
//!
//! No more pieces are on their way at once than a few for each thread, so memory does not grow with the file. Each
//! piece is read into records and definitions of its own (`Found`), which know nothing of other pieces: the same
//! comes out whatever the number of threads.

use std::io;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;

use super::collect::{Collector, Found};
use super::error::Fault;
use super::json::{self, Expect, Stop};
use super::pieces::Cutter;

/// A piece and what was found in it, if an element begins where it begins.
pub(super) struct ReadPiece {
    pub(super) text: Vec<u8>,
    pub(super) found: Found,
    pub(super) stop: Stop,
}

/// Reads elements into records of their own.
pub(super) fn found_in(text: &[u8], expect: Expect, lenient: bool) -> (Found, Stop) {
    let mut collector = Collector::default();
    let stop = json::elements(text, expect, lenient, &mut collector);
    (collector.finish(), stop)
}

/// A piece on its way to the thread that reads it, and the way back.
struct Job(Vec<u8>, SyncSender<ReadPiece>);

/// Reads all pieces of a text and hands them to `take` in order. Says how the text ended.
pub(super) fn pieces<'t>(
    cutter: Cutter<impl io::Read + Send + 't>,
    lenient: bool,
    mut take: impl FnMut(ReadPiece) -> Result<(), Fault>,
) -> Result<Ended, Fault> {
    let threads = rayon::current_num_threads();
    let (to_readers, jobs) = sync_channel::<Job>(threads);
    let jobs = Mutex::new(jobs);
    let (to_taker, in_order) = sync_channel::<Receiver<ReadPiece>>(2 * threads);
    std::thread::scope(|scope| {
        // A thread's end drops its side of a channel, which ends the others.
        let cutting = named("cut").spawn_scoped(scope, move || cut(cutter, &to_readers, &to_taker))?;
        for _ in 0..threads {
            named("read").spawn_scoped(scope, || read(&jobs, lenient))?;
        }
        for piece in in_order {
            // Without an answer the reader panicked, which the scope tells.
            let Ok(read) = piece.recv() else { break };
            take(read)?;
        }
        Ok(cutting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// A thread that can be told from others by its name.
fn named(name: &str) -> Builder {
    Builder::new().name(format!("ktape-{name}"))
}

/// How the text ended.
pub(super) struct Ended {
    /// How long it was, as far as it could be read.
    pub(super) text_bytes: u64,
    /// Why no more could be read.
    pub(super) error: Option<io::Error>,
}

fn cut(mut cutter: Cutter<impl io::Read>, readers: &SyncSender<Job>, taker: &SyncSender<Receiver<ReadPiece>>) -> Ended {
    let mut error = None;
    loop {
        let piece = match cutter.next() {
            Ok(Some(piece)) => piece,
            Ok(None) => return Ended { text_bytes: cutter.text_bytes(), error },
            Err(failed) => {
                error = Some(failed);
                continue;
            }
        };
        let (to_taker, answer) = sync_channel(1);
        // Nobody takes any more: there was a fault.
        if taker.send(answer).is_err() || readers.send(Job(piece, to_taker)).is_err() {
            return Ended { text_bytes: cutter.text_bytes(), error };
        }
    }
}

fn read(jobs: &Mutex<Receiver<Job>>, lenient: bool) {
    loop {
        // The lock is held while waiting: the others wait for the same.
        let job = jobs.lock().map(|jobs| jobs.recv());
        let Ok(Ok(Job(text, to_taker))) = job else { return };
        let (found, stop) = found_in(&text, Expect::Element, lenient);
        // The taker may be gone, after a fault.
        let _ = to_taker.send(ReadPiece { text, found, stop });
    }
}
