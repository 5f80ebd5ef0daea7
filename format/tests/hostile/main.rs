//! The tape as bytes from a stranger: reading can fail, it cannot panic, hang, or take memory out of proportion.
//! Whoever wants to harm a reader makes the checksums hold, so these tests do.

mod checksums;
mod forge;
mod seeds;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use checksums::{seal_block, seal_front, seal_staging};
use forge::{Section, block, columns, front, varint};
use ktape_format::definition::{DefinitionVisitor, visit_definitions};
use ktape_format::event::{Event, Kernel, KindVisitor, Mark, visit_kinds};
use ktape_format::{Contents, Definition, Memory, Options, Row, Sink, Table, Tape, TapeWriter, Wanted};
use proptest::prelude::*;

/// Counts what is allocated, and the most that was.
struct Counting;
static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promise is the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
/// Tests that measure run one at a time.
static MEASURING: Mutex<()> = Mutex::new(());

fn read(tape: Vec<u8>) -> Contents {
    Tape::from_bytes(tape).unwrap().read(&Wanted::default()).unwrap()
}

/// Reads a tape and asserts that neither time nor memory is out of proportion to its length.
fn read_within_bounds(what: &str, tape: Vec<u8>) -> Contents {
    let _one_at_a_time = MEASURING.lock().unwrap_or_else(|error| error.into_inner());
    let (bytes, before, began) = (tape.len(), NOW.load(Ordering::Relaxed), Instant::now());
    MOST.store(before, Ordering::Relaxed);
    let contents = read(tape);
    let peak = MOST.load(Ordering::Relaxed) - before;
    // Eight rows a byte of at most 82 bytes each, in vectors that double; and what each thread decodes with.
    let bound = 1400 * bytes + (256 << 20);
    assert!(peak < bound, "{what}: {bytes} bytes on the tape took {peak} in memory");
    assert!(began.elapsed() < Duration::from_secs(20), "{what}: {bytes} bytes took {:?}", began.elapsed());
    contents
}

fn reasons(contents: &Contents) -> Vec<&'static str> {
    contents.damage.iter().map(|damage| damage.reason).collect()
}

/// Definitions and so many events of every kind in each of three blocks, the last of them staged only if there is staging.
fn tape(half_bytes: u32, events: u32) -> Vec<u8> {
    struct Fill<'a, S>(&'a mut S, u64, u32);
    impl<S: Sink> Fill<'_, S> {
        fn row<R: Row>(&mut self) -> R {
            let mut row = R::default();
            for column in 0..R::COLUMNS.len() {
                self.1 = self.1.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                row.set(column, self.1 >> (self.1 % 64));
            }
            row
        }
    }
    impl<S: Sink> DefinitionVisitor for Fill<'_, S> {
        type Error = S::Error;
        fn visit<T: Definition>(&mut self) -> Result<(), S::Error> {
            (0..3).try_for_each(|_| {
                let row = self.row::<T>();
                self.0.define(row).map(drop)
            })
        }
    }
    impl<S: Sink> KindVisitor for Fill<'_, S> {
        type Error = S::Error;
        fn visit<E: Event>(&mut self) -> Result<(), S::Error> {
            (0..self.2).try_for_each(|_| {
                let row = self.row::<E>();
                self.0.event(row)
            })
        }
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = match half_bytes {
        0 => Options::batch("test"),
        _ => Options { staged: true, half_bytes, ..Options::batch("test") },
    };
    let mut writer = TapeWriter::create(file.path(), &options).unwrap();
    for part in 0..3 {
        writer.string(&"name ".repeat(part + 1)).unwrap();
        let mut fill = Fill(&mut writer, part as u64, events);
        visit_definitions(&mut fill).unwrap();
        visit_kinds(&mut fill).unwrap();
        if half_bytes == 0 || part < 2 {
            writer.seal().unwrap();
        }
    }
    if half_bytes == 0 {
        writer.finish().unwrap();
    }
    std::fs::read(file.path()).unwrap()
}

/// A change to a tape: where (a share of the part that it hits), and what is put there.
#[derive(Clone, Debug)]
enum Edit {
    FileHeader(usize, Vec<u8>),
    Staging(usize, Vec<u8>),
    BlockHeader(usize, usize, Vec<u8>),
    Directory(usize, usize, Vec<u8>),
    Payload(usize, usize, Vec<u8>),
    /// The start of a section, where the columns' numbers, lengths and codings are.
    Section(usize, usize, usize, Vec<u8>),
}

fn edit() -> impl Strategy<Value = Edit> {
    let number = prop_oneof![
        Just(0),
        Just(1),
        Just(u64::MAX),
        Just(u64::MAX - 512),
        Just(i64::MAX as u64),
        Just(i64::MIN as u64),
        Just(1 << 20),
        (0..64_u32).prop_map(|bit| 1 << bit),
        any::<u64>()
    ];
    let bytes = prop_oneof![
        number.clone().prop_map(|number| number.to_le_bytes().to_vec()),
        number.prop_map(varint),
        prop::collection::vec(any::<u8>(), 1..4),
        any::<u8>().prop_map(|byte| vec![byte]),
    ];
    let at = any::<usize>();
    prop_oneof![
        1 => (0..63_usize, bytes.clone()).prop_map(|(at, bytes)| Edit::FileHeader(8 + at, bytes)),
        2 => (at, bytes.clone()).prop_map(|(at, bytes)| Edit::Staging(at, bytes)),
        2 => (at, (1..7_usize).prop_map(|word| 8 * word), bytes.clone()).prop_map(|(n, at, b)| Edit::BlockHeader(n, at, b)),
        3 => (at, at, bytes.clone()).prop_map(|(n, at, bytes)| Edit::Directory(n, at, bytes)),
        2 => (at, at, bytes.clone()).prop_map(|(n, at, bytes)| Edit::Payload(n, at, bytes)),
        4 => (at, at, 0..60_usize, bytes).prop_map(|(n, s, at, bytes)| Edit::Section(n, s, at, bytes)),
    ]
}

/// Applies edits to a tape, within its length, and makes all its checksums hold again.
fn forged(mut tape: Vec<u8>, edits: &[Edit]) -> Vec<u8> {
    let whole = Tape::from_bytes(tape.clone()).unwrap();
    let (blocks, first) = (whole.blocks(), whole.header().blocks_offset() as usize);
    let mut put = |from: usize, room: usize, bytes: &[u8]| {
        let room = room.min(tape.len() - from).min(bytes.len());
        tape[from..from + room].copy_from_slice(&bytes[..room]);
    };
    for edit in edits {
        match edit {
            Edit::FileHeader(at, bytes) => put(*at, 72_usize.saturating_sub(*at), bytes),
            Edit::Staging(at, bytes) if first > 512 => {
                // Half of them at the heads of the halves or of the records.
                let half = (first - 512) / 2;
                let place = if at & 1 == 0 { at / 2 % (first - 512) } else { at / 4 % 2 * half + at / 8 % 120 };
                put(512 + place, first - 512 - place, bytes);
            }
            Edit::Staging(..) => {}
            Edit::BlockHeader(block, at, bytes) => {
                put(blocks[block % blocks.len()].offset as usize + at, 56 - at, bytes)
            }
            Edit::Directory(block, at, bytes) => {
                let block = &blocks[block % blocks.len()];
                let from = block.offset as usize + 64;
                let length = block.sections.first().map_or(0, |section| section.range.start as usize - from);
                if length > 0 {
                    put(from + at % length, length - at % length, bytes);
                }
            }
            Edit::Payload(block, at, bytes) => {
                let block = &blocks[block % blocks.len()];
                put(block.offset as usize + at % block.bytes as usize, bytes.len(), bytes);
            }
            Edit::Section(block, section, at, bytes) => {
                let sections = &blocks[block % blocks.len()].sections;
                if !sections.is_empty() {
                    put(sections[section % sections.len()].range.start as usize + at, bytes.len(), bytes);
                }
            }
        }
    }
    seal_front(&mut tape);
    seal_staging(&mut tape);
    blocks.iter().for_each(|block| seal_block(&mut tape[block.offset as usize..]));
    tape
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_forged_tape_is_read_or_refused(edits in prop::collection::vec(edit(), 1..6), half in prop_oneof![Just(0_u32), Just(65_536)]) {
        let tape = forged(tape(half, 30), &edits);
        if let Ok(tape) = Tape::from_bytes(tape) {
            let _ = tape.first_ns();
            let wanted = Wanted { from_ns: Some(i64::MAX), to_ns: Some(i64::MIN), ..Wanted::default() };
            tape.read(&wanted).unwrap();
            let contents = tape.read(&Wanted::default()).unwrap();
            // What came out can be walked, whatever its ids.
            for kernel in contents.events.kernel.rows() {
                let _ = (kernel.end_ns(), contents.definitions.kernel_name(kernel.shape));
            }
            prop_assert!((contents.events.len() + contents.definitions.len()) as u64 <= 8 * tape.file_bytes());
        }
    }
}

/// The forger's edits must get past the checksums: else the test above tests nothing.
#[test]
fn an_edit_of_a_section_reaches_its_decoder() {
    let edits = [Edit::Section(0, 20, 4, varint(u64::MAX))];
    let contents = read(forged(tape(0, 30), &edits));
    assert_eq!(reasons(&contents), ["a table's columns contradict themselves"]);
}

#[test]
fn any_length_of_the_staging_halves_is_survived() {
    for half_bytes in [1, 31, 32, 33, 63, 1 << 40, u64::MAX / 2, u64::MAX - 511, u64::MAX] {
        let mut tape = front(half_bytes);
        tape.resize(4096, 0);
        let contents = read(tape);
        assert!(contents.events.is_empty());
    }
}

#[test]
fn sequence_numbers_at_the_end_of_their_range_are_survived() {
    let mut tape = front(0);
    tape.extend(block(u64::MAX, &[]));
    tape.extend(block(0, &[]));
    assert_eq!(reasons(&read(tape)), ["blocks are missing here"]);
}

#[test]
fn every_gap_in_the_sequence_is_said() {
    let mut tape = front(0);
    for sequence in [1, 2, 5, 5, 4] {
        tape.extend(block(sequence, &[]));
    }
    assert_eq!(reasons(&read(tape)), ["blocks are missing here"; 4]);
}

#[test]
fn a_table_or_column_that_comes_twice_is_refused() {
    let constant = |number: u64| (number, vec![0, 7], Vec::new());
    let mark = |numbers: &[u64]| {
        let bytes = columns(&numbers.iter().map(|&number| constant(number)).collect::<Vec<_>>());
        Section { table: u64::from(Mark::KIND), rows: 3, bytes, ..Section::default() }
    };
    let read_one = |sections: &[Section]| read([front(0), block(0, sections)].concat());
    assert_eq!(read_one(&[mark(&[0, 2, 900])]).events.mark.name, [7; 3]);
    assert_eq!(reasons(&read_one(&[mark(&[0, 2, 2])])), ["a table's columns contradict themselves"]);
    assert_eq!(reasons(&read_one(&[mark(&[0]), mark(&[0])])), ["a block's directory contradicts itself"]);
}

/// A stream's ends are predicted from columns that must be there.
#[test]
fn a_column_that_needs_itself_or_an_absent_one_is_damage() {
    let needs = |stream: u64, duration: u64| {
        let parameters = [vec![3, 0], varint(stream), varint(duration), vec![1, 0]].concat();
        let bytes = columns(&[(0, parameters, Vec::new()), (1, vec![0, 5], Vec::new())]);
        let section = Section { table: u64::from(Kernel::KIND), rows: 4, bytes, ..Section::default() };
        read([front(0), block(0, &[section])].concat())
    };
    assert_eq!(needs(1, 1).events.kernel.start_ns, [0, 5, 10, 15]);
    for (stream, duration) in [(0, 1), (1, 0), (3, 1), (1, 90), (u64::MAX, 1)] {
        assert_eq!(reasons(&needs(stream, duration)), ["a table's columns contradict themselves"]);
    }
}

#[test]
fn no_tape_takes_time_or_memory_out_of_proportion() {
    const MOST_ROWS: u64 = 1 << 20;
    let blocks = |count: u64, sections: &dyn Fn(u64) -> Vec<Section>| {
        let mut tape = front(0);
        (0..count).for_each(|sequence| tape.extend(block(sequence, &sections(sequence))));
        tape
    };
    let small = |table: u64, rows: u64, first_id: u64| Section { table, rows, first_id, bytes: vec![0] };

    // Columns that are absent are zeros: a million rows from one byte.
    let bomb = blocks(40, &|_| (1..=19).map(|table| small(table, MOST_ROWS, 0)).collect());
    assert!(read_within_bounds("absent columns", bomb).events.is_empty());

    // The most rows that are allowed, and as few bytes as possible.
    let dense = |table| Section { table, rows: 4096, bytes: vec![0; 512], ..Section::default() };
    let bomb = blocks(100, &|_| (1..=19).map(dense).collect());
    assert_eq!(read_within_bounds("dense rows", bomb).events.len(), 100 * 19 * 4096);

    // The same column again and again, a million values each time.
    let mut again = varint(60_000);
    (0..60_000).for_each(|_| again.extend([0, 2, 0, 0, 7]));
    let bytes = again.clone();
    let bomb = blocks(1, &|_| vec![Section { table: 14, rows: MOST_ROWS, bytes: bytes.clone(), ..Section::default() }]);
    read_within_bounds("one column often", bomb);

    // Text that zstd makes out of nothing.
    let text = zstd::bulk::compress(&vec![b'x'; 60 << 20], 1).unwrap();
    let tag = varint((text.len() as u64) << 2 | 1);
    let bytes = columns(&[(0, [vec![0], varint(60 << 20)].concat(), Vec::new()), (1, tag, text)]);
    let bomb = blocks(40, &|n| vec![Section { table: 256, rows: 1, first_id: n + 1, bytes: bytes.clone() }]);
    read_within_bounds("text", bomb);

    // Empty strings and ids far away, behind damage that could have held so many.
    let mut bomb = front(0);
    bomb.resize(512 + (1 << 20), 0xff);
    let far = |table| Section { table, rows: 1, first_id: 8 << 20, bytes: vec![0] };
    bomb.extend(block(9, &(257..=270).map(far).collect::<Vec<_>>()));
    read_within_bounds("far ids", bomb);

    // A directory that would be checked once for each magic, up to the end of the file.
    let mut magic = Vec::new();
    for directory_bytes in [1_u32 << 24, 4096] {
        magic = [b"KTAPEBLK\x01\0\0\0", &directory_bytes.to_le_bytes()[..]].concat();
        magic.resize(64, 0);
        read_within_bounds("long directories", [front(0), magic.repeat(1 << 19)].concat());
    }

    // A payload that would be checked once for each header, up to the end of the file, which ends in its padding.
    let mut bomb = front(0);
    let count = 1_u64 << 17;
    for left in (1..=count).rev() {
        let mut header = block(0, &[]);
        header[48..56].copy_from_slice(&(64 * (left - 1) + 1).to_le_bytes());
        seal_block(&mut header);
        bomb.extend(header);
    }
    bomb.push(0);
    read_within_bounds("long payloads", bomb);

    // As many blocks as fit; and as many damaged ones between them.
    read_within_bounds("empty blocks", blocks(1 << 18, &|_| Vec::new()));
    let mut bomb = front(0);
    for sequence in 0..1 << 17 {
        bomb.extend(block(sequence, &[]));
        bomb.extend(&magic);
    }
    assert_eq!(read_within_bounds("damaged blocks", bomb).damage.len(), 1 << 17);

    // Records of nothing in the staging area.
    let mut bomb = front(8 << 20);
    let number = |number: u32| [number.to_le_bytes(), (!number).to_le_bytes()].concat();
    bomb.extend([b"KTAPHALF".to_vec(), number(0), number((8 << 20) - 32), number(0)].concat());
    bomb.extend([0, 0, 0, 0, 0, 1, 0, 0].repeat(((8 << 20) - 32) / 8));
    bomb.resize(512 + (16 << 20), 0);
    seal_staging(&mut bomb);
    assert_eq!(read_within_bounds("empty records", bomb).definitions.strings.len(), (1 << 20) - 4);
}

/// What the writer makes is within the bounds that the reader sets, however well it compresses.
#[test]
fn what_compresses_to_nothing_comes_back() {
    let mut expected = Memory::default();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), &Options::batch("test")).unwrap();
    fn fill<S: Sink>(sink: &mut S) -> Result<(), S::Error> {
        sink.string(&"x".repeat(16 << 20))?;
        (0..200_000).try_for_each(|n| sink.event(Mark { start_ns: n, ..Mark::default() }))
    }
    let Ok(()) = fill(&mut expected);
    fill(&mut writer).unwrap();
    let written = writer.finish().unwrap();
    assert!(written.file_bytes < 200_000, "{} bytes", written.file_bytes);
    let contents = Tape::open(file.path()).unwrap().read(&Wanted::default()).unwrap();
    assert_eq!(contents.damage, []);
    assert_eq!(contents.events, expected.events);
    assert_eq!(contents.definitions, expected.definitions);
}
