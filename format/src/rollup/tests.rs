//! What tapes add up to, held against sums by hand.

use proptest::prelude::*;

use super::*;
use crate::definition::{Frame, KernelName, Process, Stack, Thread};
use crate::event::{Alloc, Launch};
use crate::header::HEADER_BYTES;
use crate::{Options, TapeWriter};

/// What happens, by small numbers: kind, stack, kernel, duration, result, bytes.
type What = (bool, u32, u32, u64, bool, u64);

/// The events as a tape has them that defines what it meets, in this order.
fn trace(events: &[What]) -> Memory {
    let mut memory = Memory::default();
    for &(is_launch, stack, kernel, duration_ns, failed, bytes) in events {
        let Ok(process) = memory.define(Process { pid: i64::from(stack % 2), ..Process::default() });
        let Ok(thread) = memory.define(Thread { process, tid: 1 });
        let Ok(name) = memory.string(&format!("function {stack}"));
        let Ok(frame) = memory.define(Frame { name, ..Frame::default() });
        let Ok(stack) = memory.define(Stack { parent: 0, frame, line: 1 });
        let result = i32::from(failed);
        let Ok(()) = if is_launch {
            let Ok(name) = memory.string(&format!("kernel {kernel}"));
            let Ok(kernel) = memory.define(KernelName { name, module: 0 });
            let Ok(shape) = memory.define(Shape { kernel, ..Shape::default() });
            memory.event(Launch { duration_ns, thread, stack, shape, result, ..Launch::default() })
        } else {
            memory.event(Alloc { duration_ns, thread, stack, bytes, result, ..Alloc::default() })
        };
    }
    memory
}

/// The rows with names in the place of ids.
fn rows(digest: &Digest) -> BTreeMap<(i64, u16, u8, String, String), [u64; 6]> {
    let mut memory = Memory::default();
    let Ok(()) = digest.write(&mut memory);
    let definitions = &memory.definitions;
    let frame = |stack| definitions.get::<Stack>(stack).and_then(|stack| definitions.get::<Frame>(stack.frame));
    let row = |row: Rollup| {
        let process = definitions.get(row.process).map_or(-1, |process: Process| process.pid);
        let kernel = definitions.get(row.kernel).map_or("", |kernel: KernelName| definitions.string(kernel.name));
        let stack = frame(row.stack).map_or("", |frame| definitions.string(frame.name));
        let key = (process, row.kind, digits(row.max_ns), kernel.to_owned(), stack.to_owned());
        (key, [row.count, row.failed, row.sum_ns, row.min_ns, row.max_ns, row.bytes])
    };
    let rows: Vec<_> = memory.events.rollup.rows().map(row).collect();
    let count = rows.len();
    let rows: BTreeMap<_, _> = rows.into_iter().collect();
    assert_eq!(rows.len(), count, "one row for each key");
    rows
}

/// A digest on a tape, and read again.
fn tape(digest: &Digest) -> Tape {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.ktape");
    let mut tape = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    digest.write(&mut tape).unwrap();
    tape.finish().unwrap();
    Tape::from_bytes(std::fs::read(path).unwrap()).unwrap()
}

fn what() -> impl Strategy<Value = What> {
    (
        any::<bool>(),
        0..5_u32,
        0..3_u32,
        prop_oneof![0..20_u64, any::<u32>().prop_map(u64::from)],
        any::<bool>(),
        0..99_u64,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_rollup_of_all_is_that_of_the_rollups_of_any_parts(
        events in prop::collection::vec(what(), 0..200),
        cuts in prop::collection::vec(0..200_usize, 0..5),
    ) {
        let mut whole = Digest::default();
        let memory = trace(&events);
        whole.add_events(&memory.definitions, &memory.events);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(events.len())).collect();
        cuts.extend([0, events.len()]);
        cuts.sort_unstable();
        let mut merged = Digest::default();
        for cut in cuts.windows(2) {
            let memory = trace(&events[cut[0]..cut[1]]);
            let mut part = Digest::default();
            part.add_events(&memory.definitions, &memory.events);
            merged.add_tape(&tape(&part)).unwrap();
        }
        prop_assert_eq!(rows(&merged), rows(&whole));
        let count: u64 = rows(&whole).values().map(|sums| sums[0]).sum();
        prop_assert_eq!(count, events.len() as u64);
    }
}

#[test]
fn a_kernel_that_is_named_on_a_later_tape_has_the_name_in_what_is_made_of_both() {
    // The handle's launches, and then its name, whose tape has no launch of it.
    let tape_of = |name: Option<&str>| {
        let mut memory = Memory::default();
        let Ok(handle) = memory.string("unknown kernel @0x5620 of process 7");
        let Ok(kernel) = memory.define(KernelName { name: handle, module: 0 });
        match name {
            Some(name) => {
                let Ok(()) = memory.property(DefinitionKind::Kernel as u16, kernel, property::NAME, name);
            }
            None => {
                let Ok(shape) = memory.define(Shape { kernel, ..Shape::default() });
                let Ok(()) = memory.event(Launch { shape, ..Launch::default() });
            }
        }
        let mut digest = Digest::default();
        digest.add_events(&memory.definitions, &memory.events);
        tape(&digest)
    };
    let mut both = Digest::default();
    both.add_tape(&tape_of(None)).unwrap();
    both.add_tape(&tape_of(Some("gemm"))).unwrap();
    let both = tape(&both).read(&Wanted::default()).unwrap();
    let kernel = both.events.rollup.kernel[0];
    assert_eq!(both.definitions.property(DefinitionKind::Kernel as u16, kernel, property::NAME), Some("gemm"));
    assert_eq!(both.definitions.kernels.len(), 1);
}

#[test]
fn stretches_off_the_processor_are_added_up_by_process_and_belong_where_they_end() {
    let mut memory = Memory::default();
    let Ok(process) = memory.define(Process { pid: 7, ..Process::default() });
    for (tid, start_ns, duration_ns) in [(1, -1_000_000, 1_000_050), (2, 40, 30), (1, 70, 31)] {
        let Ok(thread) = memory.define(Thread { process, tid });
        let Ok(()) = memory.event(OffCpu { start_ns, duration_ns, thread, ..OffCpu::default() });
    }
    let mut digest = Digest::default();
    digest.add_events(&memory.definitions, &memory.events);
    let sums: Vec<_> = rows(&digest).into_iter().map(|((pid, kind, ..), sums)| (pid, kind, sums)).collect();
    let kind = OffCpu::KIND;
    assert_eq!(sums, [(7, kind, [2, 0, 61, 30, 31, 0]), (7, kind, [1, 0, 1_000_050, 1_000_050, 1_000_050, 0])]);
    assert_eq!(digest.span, Some((50, 101)));
}

/// It was told for the time 0, hours before the recording began.
#[test]
fn damage_of_a_time_that_is_not_known_is_behind_what_came_before() {
    let mut digest = Digest::default();
    let mut memory = Memory::default();
    let Ok(()) = memory.event(Launch { start_ns: 1_000, duration_ns: 10, ..Launch::default() });
    digest.add_events(&memory.definitions, &memory.events);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.ktape");
    let mut damaged = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    for index in 0..100 {
        damaged.event(Launch { start_ns: 2_000 + index * index, ..Launch::default() }).unwrap();
    }
    damaged.finish().unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    bytes[HEADER_BYTES + 100] ^= 1;
    digest.add_tape(&Tape::from_bytes(bytes).unwrap()).unwrap();
    let lost = tape(&digest).read(&Wanted::default()).unwrap().events.loss;
    assert_eq!((lost.start_ns, lost.duration_ns), (vec![1_010], vec![0]));
}

#[test]
fn what_is_not_told_apart_is_in_rows_of_its_kind_and_counted() {
    let events: Vec<What> = (0..100).map(|index| (true, index % 50, 0, 5, false, 0)).collect();
    let memory = trace(&events);
    let mut digest = Digest::with_most_keys(10);
    digest.add_events(&memory.definitions, &memory.events);
    let check = |digest: &Digest| {
        assert_eq!(digest.rest(), 80);
        let rows = rows(digest);
        assert_eq!(rows.values().map(|sums| sums[0]).sum::<u64>(), 100);
        assert_eq!(rows[&(-1, Launch::KIND, 3, String::new(), String::new())][0], 80);
    };
    check(&digest);
    let mut again = Digest::default();
    again.add_tape(&tape(&digest)).unwrap();
    check(&again);
}

#[test]
fn losses_and_tallies_are_added_up() {
    let mut memory = Memory::default();
    let Ok(cause) = memory.string("full");
    for start_ns in [10, 5] {
        let loss = Loss { start_ns, duration_ns: 3, count: 7, kind: Launch::KIND, cause, ..Loss::default() };
        let Ok(()) = memory.event(loss);
        let tally =
            Tally { start_ns, duration_ns: 4, cpu: 1, kind: Launch::KIND, seen: 9, written: 2, lost: 6, left_out: 1 };
        let Ok(()) = memory.event(tally);
    }
    let mut digest = Digest::default();
    digest.add_events(&memory.definitions, &memory.events);
    let Ok(()) = {
        memory = Memory::default();
        digest.write(&mut memory)
    };
    let losses: Vec<Loss> = memory.events.loss.rows().collect();
    let loss = Loss { start_ns: 5, duration_ns: 8, count: 14, kind: Launch::KIND, cause: 1, ..Loss::default() };
    assert_eq!((losses, memory.definitions.string(1)), (vec![loss], "full"));
    let tally =
        Tally { start_ns: 5, duration_ns: 9, cpu: 1, kind: Launch::KIND, seen: 18, written: 4, lost: 12, left_out: 2 };
    assert_eq!(memory.events.tally.rows().collect::<Vec<_>>(), [tally]);
}
