//! Reading less than all: it is what reading all and dropping the rest would give, and what is not wanted is not read.

use ktape_format::definition::{Context, Process, Stream, Thread};
use ktape_format::event::{Kernel, Launch, Loss, Mark};
use ktape_format::{Contents, Options, Owners, Sink, Table, Tape, TapeError, TapeWriter, Wanted};

use crate::{same_events, tape_of};

/// Six blocks: process 1, process 2, both, and again; then marks of nobody, and of process 1 and nobody.
fn two_processes(writer: &mut TapeWriter) -> Result<(), TapeError> {
    let mut ids = Vec::new();
    for pid in [41, 42] {
        let process = writer.define(Process { pid, ..Process::default() })?;
        let thread = writer.define(Thread { process, tid: pid })?;
        let context = writer.define(Context { process, ..Context::default() })?;
        ids.push((thread, writer.define(Stream { context, ..Stream::default() })?));
    }
    for block in 0..6_i64 {
        for event in 0..50 {
            let owner = [event % 2, 0, 1][(block % 3) as usize];
            let (thread, stream) = ids[owner as usize];
            let (start_ns, correlation) = (block * 1000 + event, event as u64);
            writer.event(Launch { start_ns, duration_ns: 2, correlation, thread, stream, ..Launch::default() })?;
            writer.event(Kernel { start_ns: start_ns + 1, correlation, stream, ..Kernel::default() })?;
        }
        writer.seal()?;
    }
    let thread = ids[0].0;
    (0..9).try_for_each(|start_ns| writer.event(Mark { start_ns, ..Mark::default() }))?;
    writer.seal()?;
    (0..9).try_for_each(|tick| writer.event(Mark { start_ns: 10_000 + tick, thread, ..Mark::default() }))?;
    // Somebody's and nobody's in one section.
    writer.event(Mark { start_ns: 10_009, ..Mark::default() })?;
    writer.event(Loss { count: 3, ..Loss::default() })
}

fn tape() -> Tape {
    Tape::from_bytes(tape_of(&Options::batch("test"), two_processes)).unwrap()
}

fn read(tape: &Tape, wanted: &Wanted) -> Contents {
    tape.read(wanted).unwrap()
}

#[test]
fn one_process_of_one_time_is_what_dropping_the_rest_would_give() {
    let tape = tape();
    for processes in [vec![], vec![1], vec![2], vec![1, 2], vec![7], vec![0], vec![0, 2]] {
        for (from_ns, to_ns) in [(None, None), (Some(1010), None), (None, Some(2020)), (Some(1049), Some(4001))] {
            let wanted = Wanted { from_ns, to_ns, processes: processes.clone(), ..Wanted::default() };
            let less = read(&tape, &wanted);
            let mut all = read(&tape, &Wanted::default());
            wanted.keep(&Owners::of(&all.definitions), &mut all.events);
            assert!(same_events(&less.events, &all.events), "{wanted:?}");
            assert_eq!(less.definitions, all.definitions, "definitions always come");
            assert_eq!(less.events.loss.count.len(), usize::from(from_ns.is_none()), "a loss is nobody's");
        }
    }
    let second = read(&tape, &Wanted { processes: vec![2], ..Wanted::default() });
    assert_eq!(second.events.launch.len(), 2 * (25 + 50));
    assert_eq!(second.events.mark.len(), 0, "nobody's marks are not process 2's");
}

#[test]
fn blocks_without_the_wanted_process_are_not_read() {
    let mut bytes = tape_of(&Options::batch("test"), two_processes);
    // The second and fifth block have process 1 only. Damaged, they cost whoever wants process 2 nothing.
    let blocks = Tape::from_bytes(bytes.clone()).unwrap().blocks().to_vec();
    for block in [&blocks[1], &blocks[4]] {
        bytes[block.sections[0].range.start as usize] ^= 1;
    }
    let tape = Tape::from_bytes(bytes).unwrap();
    let damage = |processes| read(&tape, &Wanted { processes, ..Wanted::default() }).damage.len();
    assert_eq!([damage(vec![]), damage(vec![1]), damage(vec![2])], [2, 2, 0]);
    // And so for times.
    let early = Wanted { to_ns: Some(1000), ..Wanted::default() };
    assert_eq!(read(&tape, &early).damage, []);
}

#[test]
fn columns_that_are_not_wanted_are_zero() {
    let tape = tape();
    let all = read(&tape, &Wanted::default()).events;
    // A kernel's start is decoded with the help of its stream and duration.
    let starts = Wanted { columns: vec!["start_ns"], ..Wanted::default() };
    let events = read(&tape, &starts).events;
    assert_eq!(events.kernel.start_ns, all.kernel.start_ns);
    assert_eq!(events.launch.start_ns, all.launch.start_ns);
    assert!(events.launch.correlation.iter().all(|&correlation| correlation == 0));
    assert_eq!(events.loss.count, [3], "a loss is a loss");
    // What decides about a row is decoded too.
    let some = Wanted { columns: vec!["correlation"], processes: vec![2], from_ns: Some(1), ..Wanted::default() };
    let events = read(&tape, &some).events;
    assert_eq!(events.launch.len(), 2 * (25 + 50));
    assert_eq!(events.launch.correlation[..3], [1, 3, 5]);
}

#[test]
fn definitions_alone_are_all_definitions() {
    let tape = tape();
    assert_eq!(tape.definitions().unwrap(), read(&tape, &Wanted::default()).definitions);
}

/// Part by part it is the same, and the definitions of a part are the last of all so far.
#[test]
fn a_tape_scanned_is_a_tape_read() {
    let tape = tape();
    let mut events = ktape_format::Events::default();
    let damage = tape
        .scan(&Wanted::default(), |definitions, mut part| {
            let new = part.definitions.threads.len();
            let known = definitions.threads.rows().skip(definitions.threads.len() - new);
            assert!(part.definitions.threads.rows().eq(known));
            assert!(part.block.is_some());
            events.append(&mut part.events);
            Ok::<(), TapeError>(())
        })
        .unwrap();
    assert_eq!(damage, []);
    assert!(same_events(&events, &read(&tape, &Wanted::default()).events));
}

/// Another program cuts the file while it is being read: fewer rows and damage, and no fault.
#[test]
fn a_file_cut_while_it_is_read_is_damage() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), tape_of(&Options::batch("test"), two_processes)).unwrap();
    let tape = Tape::open(file.path()).unwrap();
    let third = tape.blocks()[2].offset;
    file.as_file().set_len(third).unwrap();
    let contents = read(&tape, &Wanted::default());
    assert_eq!(contents.events.launch.len(), 100);
    assert_eq!(contents.damage.len(), 6, "{:?}", contents.damage);
}
