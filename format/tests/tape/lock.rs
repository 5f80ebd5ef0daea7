//! One writer a tape.

use ktape_format::{TapeError, TapeWriter};

use crate::staged;

#[test]
fn one_writer_at_a_time() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let writer = TapeWriter::create(file.path(), &staged(4096)).unwrap();
    assert!(matches!(TapeWriter::create(file.path(), &staged(4096)), Err(TapeError::Locked)));
    writer.finish().unwrap();
    assert!(TapeWriter::create(file.path(), &staged(4096)).is_ok());
}

#[cfg(unix)]
#[test]
fn one_writer_of_all_processes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("one.ktape");
    let mut other = crate::kill::Writer::spawn(&path, 65_536);
    for events in [1, 1000, 5000] {
        other.wait_for(events);
        assert!(matches!(TapeWriter::create(&path, &staged(4096)), Err(TapeError::Locked)));
    }
    let committed = other.kill();
    let read = ktape_format::Tape::open(&path).unwrap().read(&ktape_format::Wanted::default()).unwrap();
    assert!(read.damage.is_empty() && read.events.len() as u64 >= committed, "the refused left the tape alone");
    assert!(TapeWriter::create(&path, &staged(4096)).is_ok(), "the dead hold no lock");
}
