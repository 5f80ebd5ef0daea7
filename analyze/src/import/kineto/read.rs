//! The text is read on all cores: one thread unpacks it and cuts it into pieces, the others read a piece each, and
//! what they found comes back in the text's order.
//!
//! No more pieces are on their way at once than a few for each thread, so memory does not grow with the file. Each
//! piece is read into records and definitions of its own (`Found`), which know nothing of other pieces: the same
//! comes out whatever the number of threads.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::Builder;

use memchr::memchr_iter;

use super::collect::{Collector, Found};
use super::error::Fault;
use super::json::{self, Expect, Stop};
use super::pieces::Cutter;

/// A piece and what was found in it, if an element begins where it begins.
pub(super) struct ReadPiece {
    pub(super) text: Vec<u8>,
    /// How many lines end in it.
    pub(super) lines: u64,
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

/// Has all pieces of a text read and hands them to `take` in order, which gives back the memory of those that it is done
/// with. Says how the text ended.
pub(super) fn pieces<'t>(
    cutter: Cutter<impl io::Read + Send + 't>,
    read: impl Fn(&[u8]) -> (Found, Stop) + Sync,
    mut take: impl FnMut(ReadPiece) -> Result<Vec<u8>, Fault>,
) -> Result<Ended, Fault> {
    let threads = rayon::current_num_threads();
    let (to_readers, jobs) = sync_channel::<Job>(threads);
    // The readers' own: when the last of them is gone, the cutter is not to wait for one.
    let jobs = Arc::new(Mutex::new(jobs));
    let (to_taker, in_order) = sync_channel::<Receiver<ReadPiece>>(2 * threads);
    let (to_cutter, spent) = channel();
    std::thread::scope(|scope| {
        // A thread's end drops its side of a channel, which ends the others.
        let cut = move || cut(cutter, &spent, &to_readers, &to_taker);
        let cutting = named("cut").spawn_scoped(scope, cut).map_err(Fault::Thread)?;
        for number in 0..threads {
            let (jobs, read) = (jobs.clone(), &read);
            match named("read").spawn_scoped(scope, move || read_jobs(&jobs, read)) {
                Ok(_) => {}
                Err(error) if number == 0 => return Err(Fault::Thread(error)),
                // It takes longer with fewer.
                Err(_) => break,
            }
        }
        drop(jobs);
        for piece in in_order {
            // Without an answer the reader panicked, which the scope tells.
            let Ok(read) = piece.recv() else { break };
            // After the last piece nobody wants it.
            let _ = to_cutter.send(take(read)?);
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

fn cut(
    mut cutter: Cutter<impl io::Read>,
    spent: &Receiver<Vec<u8>>,
    readers: &SyncSender<Job>,
    taker: &SyncSender<Receiver<ReadPiece>>,
) -> Ended {
    let mut error = None;
    loop {
        let piece = match cutter.next(spent.try_recv().unwrap_or_default()) {
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

fn read_jobs(jobs: &Mutex<Receiver<Job>>, read: impl Fn(&[u8]) -> (Found, Stop)) {
    loop {
        // The lock is held while waiting: the others wait for the same.
        let job = jobs.lock().map(|jobs| jobs.recv());
        let Ok(Ok(Job(text, to_taker))) = job else { return };
        let (found, stop) = read(&text);
        // While the text is still in this core's cache.
        let lines = memchr_iter(b'\n', &text).count() as u64;
        // The taker may be gone, after a fault.
        let _ = to_taker.send(ReadPiece { text, lines, found, stop });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn readers_that_panic_end_the_reading() {
        let (done, ended) = channel();
        std::thread::spawn(move || {
            let text = r#"{"ph": "X"}, "#.repeat(1000);
            let outcome = std::panic::catch_unwind(|| {
                let cutter = Cutter::new(text.as_bytes(), 20);
                pieces(cutter, |_| panic!("a reader's"), |piece| Ok(piece.text)).is_ok()
            });
            done.send(outcome.is_err())
        });
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(true), "it hangs, or says nothing");
    }

    #[test]
    fn a_fault_ends_the_reading() {
        let text = r#"{"ph": "X"}, "#.repeat(1000);
        let cutter = Cutter::new(text.as_bytes(), 20);
        let read = |text: &[u8]| found_in(text, Expect::Element, false);
        let ended = pieces(cutter, read, |_| Err(Fault::NotATrace("something else".to_owned())));
        assert!(matches!(ended, Err(Fault::NotATrace(_))));
    }
}
