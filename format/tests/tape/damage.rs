//! What is left of a tape that is damaged, cut off, or of an earlier boot.

use ktape_format::definition::{Frame, Stack, Thread};
use ktape_format::event::Launch;
use ktape_format::header::FileHeader;
use ktape_format::{Options, Sink, Table, Tape, TapeWriter, Wanted};
use proptest::prelude::*;

use crate::{killed_tape, small_killed_tape, small_tape, staged};

proptest! {
    #[test]
    fn any_bytes_at_all_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..2000), flips in prop::collection::vec((0..6000_usize, any::<u8>()), 1..8)) {
        let _ = Tape::from_bytes(bytes.clone()).map(|tape| tape.read(&Wanted::default()));
        // The same for a real tape with some bytes changed.
        bytes = small_tape(&staged(0));
        for (at, byte) in flips {
            let length = bytes.len();
            bytes[at % length] = byte;
        }
        if let Ok(tape) = Tape::from_bytes(bytes) {
            let _ = tape.read(&Wanted::default());
        }
    }
}

#[test]
fn a_tape_cut_at_any_byte_opens_up_to_its_last_whole_block() {
    for whole in [small_tape(&staged(0)), small_tape(&staged(4096)), small_killed_tape()] {
        let header = FileHeader::read(&whole).unwrap();
        // One that is closed has no halves any more, where its filesystem makes holes.
        let has_halves = header.staging_half_bytes > 0 && whole[FileHeader::STAGING_OFFSET as usize] != 0;
        let ends: Vec<u64> = {
            let tape = Tape::from_bytes(whole.clone()).unwrap();
            // A block is whole without its padding.
            tape.blocks()
                .iter()
                .map(|block| block.sections.last().map_or(block.offset + block.bytes, |s| s.range.end))
                .collect()
        };
        for length in 0..whole.len() {
            let opened = Tape::from_bytes(whole[..length].to_vec());
            if length < ktape_format::header::HEADER_BYTES {
                assert!(opened.is_err(), "{length} bytes");
                continue;
            }
            let tape = opened.unwrap();
            let contents = tape.read(&Wanted::default()).unwrap();
            let blocks = ends[..3].iter().filter(|&&end| end <= length as u64).count();
            // The halves that the last two blocks were sealed from still have their rows.
            let blocks = if has_halves && blocks >= 1 { 3 } else { blocks };
            assert_eq!(contents.events.launch.len(), 20 * blocks, "{length} of {} bytes", whole.len());
            assert_eq!(contents.definitions.threads.len(), blocks);
            assert!(!tape.is_closed());
        }
    }
}

#[test]
fn a_damaged_block_costs_its_own_rows_and_no_others() {
    let whole = small_tape(&staged(0));
    let tape = Tape::from_bytes(whole.clone()).unwrap();
    let second = &tape.blocks()[1];
    let inside = second.sections.last().unwrap().range.start as usize;
    for at in [second.offset as usize, second.offset as usize + 70, inside] {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x40;
        let contents = Tape::from_bytes(damaged).unwrap().read(&Wanted::default()).unwrap();
        assert_eq!(contents.damage.len(), 1, "byte {at}: {:?}", contents.damage);
        assert_eq!(contents.damage[0].offset, second.offset);
        let launches = &contents.events.launch;
        assert_eq!(launches.len(), 40);
        // The third block's ids still mean what they meant.
        let last = launches.row(39);
        assert_eq!(contents.definitions.get::<Thread>(last.thread).unwrap().tid, 2);
        let stack = contents.definitions.get::<Stack>(last.stack).unwrap();
        let frame = contents.definitions.get::<Frame>(stack.frame).unwrap();
        assert_eq!(contents.definitions.string(frame.name), "function 2");
        // The second's are gone, and say so.
        assert_eq!(contents.definitions.string(2), "");
    }
}

#[test]
fn damage_in_a_payload_says_how_many_rows_it_cost() {
    let mut bytes = small_tape(&staged(0));
    let at = Tape::from_bytes(bytes.clone()).unwrap().blocks()[2].sections[0].range.start as usize;
    bytes[at] ^= 1;
    let contents = Tape::from_bytes(bytes).unwrap().read(&Wanted::default()).unwrap();
    assert_eq!(contents.damage[0].rows, Some(25), "20 launches and 5 definitions");
}

#[test]
fn the_tail_keeps_its_ids_where_the_block_before_it_is_damaged() {
    let whole = killed_tape();
    let (first, last) = {
        let tape = Tape::from_bytes(whole.clone()).unwrap();
        (tape.blocks()[0].sections[0].range.start as usize, tape.blocks()[1].sections[0].range.start as usize)
    };
    let names = |damaged: usize| {
        let mut bytes = whole.clone();
        bytes[damaged] ^= 1;
        let contents = Tape::from_bytes(bytes).unwrap().read(&Wanted::default()).unwrap();
        let name = |row: Launch| contents.definitions.string(row.args).to_owned();
        (contents.events.launch.rows().map(name).collect::<Vec<_>>(), contents.damage.len())
    };
    assert_eq!(names(first), (vec!["name 1".to_owned(), "name 2".to_owned()], 1));
    // The half that the last block was sealed from still has its rows, so nothing is lost.
    assert_eq!(names(last), (vec!["name 0".to_owned(), "name 1".to_owned(), "name 2".to_owned()], 0));
}

#[test]
fn a_tail_whose_block_before_is_lost_is_said_and_left_out() {
    let mut bytes = killed_tape();
    let tape = Tape::from_bytes(bytes.clone()).unwrap();
    // Neither the second block nor the half that it was sealed from.
    let (half, second) = (512 + 4096, tape.blocks()[1].offset as usize);
    assert_eq!(bytes[half + 8], 1, "the half of block 1");
    bytes[half + 16..half + 24].copy_from_slice(&0xffff_ffff_0000_0000_u64.to_le_bytes());
    bytes[second] = 0;
    let contents = Tape::from_bytes(bytes).unwrap().read(&Wanted::default()).unwrap();
    assert_eq!(contents.events.launch.start_ns, [1000]);
    let offsets: Vec<u64> = contents.damage.iter().map(|damage| damage.offset).collect();
    assert_eq!(offsets, [512, second as u64], "{:?}", contents.damage);
}

/// How many definitions the rest of a half had is not known, so the next half's ids could mean something else.
#[test]
fn staged_data_behind_a_half_that_cannot_be_read_to_its_end_is_left_out() {
    let whole = killed_tape();
    // Without the last block, its rows are in its half, and the rows that the other half has follow them.
    let second = Tape::from_bytes(whole.clone()).unwrap().blocks()[1].offset as usize;
    let starts = |damaged: Option<usize>| {
        let mut bytes = whole[..second].to_vec();
        damaged.into_iter().for_each(|at| bytes[at] ^= 1);
        let contents = Tape::from_bytes(bytes).unwrap().read(&Wanted::default()).unwrap();
        let offsets: Vec<u64> = contents.damage.iter().map(|damage| damage.offset).collect();
        (contents.events.launch.start_ns, contents.definitions.strings.len(), offsets)
    };
    assert_eq!(starts(None), (vec![1000, 1001, 1002], 3, vec![]));
    let (half, after) = (512 + 4096, 512);
    // Its first record is a string.
    assert_eq!(starts(Some(half + 40)), (vec![1000], 1, vec![after, half as u64]));
    assert_eq!(starts(Some(half + 12)), (vec![1000], 1, vec![after, half as u64]));
    // What follows nothing costs only itself.
    assert_eq!(starts(Some(after as usize + 40)), (vec![1000, 1001], 2, vec![after]));
}

#[cfg(target_os = "linux")]
#[test]
fn what_was_staged_before_this_host_restarted_is_not_trusted() {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    for (host, trusted) in [(host, false), ("elsewhere".to_owned(), true)] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let options = Options { host, boot_id: [7; 16], ..staged(4096) };
        let mut writer = TapeWriter::create(file.path(), &options).unwrap();
        writer.event(Launch::default()).unwrap();
        let mut bytes = std::fs::read(file.path()).unwrap();
        // Three more were lost.
        bytes[512 + 24..512 + 32].copy_from_slice(&0xffff_fffc_0000_0003_u64.to_le_bytes());
        let contents = Tape::from_bytes(bytes).unwrap().read(&Wanted::default()).unwrap();
        let read = (contents.events.launch.len(), contents.events.loss.len(), contents.damage.len());
        assert_eq!(read, if trusted { (1, 1, 0) } else { (0, 0, 1) });
    }
}

/// How many definitions a block had whose header is gone, the next block's first ids say; a half does not.
#[test]
fn staged_definitions_behind_a_lost_block_take_no_ids_of_others() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), &staged(4096)).unwrap();
    let first = writer.string("first").unwrap();
    writer.seal().unwrap();
    let second = writer.string("second").unwrap();
    writer.seal().unwrap();
    for start_ns in 0..2 {
        writer.event(Launch { start_ns, args: second, ..Launch::default() }).unwrap();
        writer.seal().unwrap();
    }
    let third = writer.string("third").unwrap();
    writer.event(Launch { start_ns: 2, args: third, ..Launch::default() }).unwrap();
    let mut bytes = std::fs::read(file.path()).unwrap();
    let offset = Tape::open(file.path()).unwrap().blocks()[1].offset as usize;
    bytes[offset] ^= 1;
    let contents = Tape::from_bytes(bytes).unwrap().read(&Wanted::default()).unwrap();
    assert_eq!(contents.definitions.string(first), "first");
    assert_eq!(contents.definitions.string(second), "", "another string has its id");
    assert!(["", "third"].contains(&contents.definitions.string(third)));
    assert_eq!(contents.events.launch.args[..2], [second; 2]);
    assert_eq!(contents.damage.len(), 2, "the block, and the half: {:?}", contents.damage);
}

/// Each place that looks like a block and is none costs a look, not a search through all that is behind it.
#[test]
fn a_file_of_nothing_but_magics_is_walked_in_time() {
    let mut bytes = small_tape(&staged(0));
    let place = [&b"KTAPEBLK"[..], &[0xff; 56]].concat();
    let places = (8 << 20) / place.len();
    bytes.extend(place.repeat(places));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let begun = std::time::Instant::now();
    let tape = Tape::open(file.path()).unwrap();
    assert_eq!(tape.read(&Wanted::default()).unwrap().damage.len(), places);
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
}
