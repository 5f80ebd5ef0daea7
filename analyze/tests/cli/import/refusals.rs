//! What is refused, and how clearly; and that nothing panics.

use std::path::Path;

use ktape_analyze::import::{Options, kineto};
use ktape_format::Memory;

use super::{fixture, import};
use crate::common;

/// The one line that the user gets.
fn refusal(path: &Path) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = common::analyze([
        "import".as_ref(),
        path.as_os_str(),
        "-o".as_ref(),
        folder.path().join("x.ktape").as_os_str(),
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", path.display());
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains(&*path.file_name().unwrap().to_string_lossy()), "{error}");
    error
}

pub(super) fn says(path: &Path, parts: &[&str]) {
    let error = refusal(path);
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
}

#[test]
fn other_files_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    says(&file("empty.json", b" \n"), &["is empty"]);
    says(&file("object.json", b"{\"a\": 1}"), &["traceEvents", "export_chrome_trace"]);
    says(&file("snapshot.pickle", b"\x80\x04\x95rest"), &["Python pickle", "export_chrome_trace"]);
    says(&file("trace.zip", b"PK\x03\x04rest"), &["ZIP archive", "unpack"]);
    says(&file("noise", &[0xff, 0xd8, 0xff]), &["not JSON"]);
    says(&file("rows.json", b"[[0, 1, 2, 3]]"), &["export_memory_timeline"]);
    says(folder.path(), &["folder without a trace", "its first file, empty.json"]);
    says(&folder.path().join("absent.json"), &["No such file"]);
    let whole = std::fs::read(fixture("modern.json")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &whole).unwrap();
    let packed = packed.finish().unwrap();
    says(&file("cut.json.gz", &packed[..packed.len() / 2]), &["gzip", "cut off"]);
    let mut database = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut database, b"SQLite format 3\0...").unwrap();
    says(&file("report.sqlite.gz", &database.finish().unwrap()), &["SQLite", "Nsight", "unpack it"]);
    let name = file("no_ending", &packed);
    assert_eq!(import(&name).unwrap().1, import(&fixture("modern.json")).unwrap().1, "content decides, not the ending");
}

#[test]
fn a_memory_timeline_is_refused_by_name() {
    let Some(shared) = common::shared() else { return };
    let path = "traces/facebookresearch+HolisticTraceAnalysis/tests/data/memory_analysis/memory_timeline.raw.gz";
    says(&shared.join(path), &["export_memory_timeline", "export_chrome_trace"]);
}

/// Cutting a real file anywhere gives one clear error, never a panic and never a tape that claims to be whole.
#[test]
fn a_trace_cut_anywhere_is_refused() {
    let text = std::fs::read(fixture("modern.json")).unwrap();
    let whole = text.trim_ascii_end().len();
    for length in 0..whole {
        let outcome =
            kineto::import_bytes(&text[..length], "cut.json", &mut Memory::default(), Options::default(), |_| {});
        assert!(outcome.is_err(), "cut to {length} bytes");
    }
    assert!(
        kineto::import_bytes(&text[..whole], "whole.json", &mut Memory::default(), Options::default(), |_| {}).is_ok()
    );
}

/// Whatever a byte is replaced with, the import succeeds or says why not; it never panics.
#[test]
fn a_changed_byte_is_survived() {
    let text = std::fs::read(fixture("modern.json")).unwrap();
    for position in 0..text.len() {
        for byte in [b'9', b'-', b'"'] {
            let mut text = text.clone();
            text[position] = byte;
            let _ = kineto::import_bytes(&text, "changed.json", &mut Memory::default(), Options::default(), |_| {});
        }
    }
}
