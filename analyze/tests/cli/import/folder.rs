//! Folders of ranks, through the binary.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Output;

use ktape_format::definition::{Process, Thread, property};
use ktape_format::table::DefinitionKind;
use ktape_format::{Contents, Table as _, Tape, Wanted};
use serde_json::Value;

use super::fixture;
use crate::common::{analyze, shared};

/// A trace of one rank: a call, its kernel on device 0, and a slice.
fn rank(rank: u32) -> String {
    format!(
        r#"{{"distributedInfo": {{"rank": {rank}, "world_size": 2}}, "traceEvents": [
{{"ph": "X", "cat": "cpu_op", "name": "op of {rank}", "pid": 7, "tid": 7, "ts": 1, "dur": 9}},
{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7, "ts": 2, "dur": 1, "args": {{"correlation": 5}}}},
{{"ph": "X", "cat": "kernel", "name": "kernel of {rank}", "pid": 0, "tid": 3, "ts": 4, "dur": 2, "args": {{"device": 0, "stream": 3, "correlation": 5}}}}
]}}"#
    )
}

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("ranks")).unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join("ranks").join(name), bytes).unwrap();
    }
    folder
}

fn import(folder: &Path, options: &[&str]) -> (Output, Value) {
    let ranks = folder.join("ranks");
    let output = analyze([&["import", ranks.to_str().unwrap(), "--json"], options].concat());
    let summary = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output, summary)
}

fn read(tape: &Path) -> Contents {
    Tape::open(tape).unwrap().read(&Wanted::default()).unwrap()
}

/// Why each file was left out, by name; null for one that was not.
fn left_out(summary: &Value) -> BTreeMap<&str, &Value> {
    let files = summary["files"].as_array().unwrap();
    files.iter().map(|file| (file["name"].as_str().unwrap(), &file["left_out"])).collect()
}

#[test]
fn each_rank_is_a_process_with_devices_of_its_own() {
    let (zero, one) = (rank(0), rank(1));
    let folder = folder(&[("rank0.json", zero.as_bytes()), ("rank1.json", one.as_bytes())]);
    let (output, summary) = import(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(left_out(&summary), [("rank0.json", &Value::Null), ("rank1.json", &Value::Null)].into());
    assert_eq!((&summary["matched"], &summary["unmatched"]), (&2.into(), &0.into()));
    // Beside the folder, under its name.
    let tape = folder.path().join("ranks.ktape");
    assert_eq!(summary["output"], tape.to_str().unwrap());
    let contents = read(&tape);
    let (events, definitions) = (&contents.events, &contents.definitions);
    let processes: Vec<(&str, Option<&str>)> = (1..=2)
        .map(|id| {
            let process: Process = definitions.get(id).unwrap();
            (
                definitions.string(process.source),
                definitions.property(DefinitionKind::Process as u16, id, property::RANK),
            )
        })
        .collect();
    assert_eq!(processes, [("rank0.json", Some("0")), ("rank1.json", Some("1"))]);
    assert_eq!(
        (definitions.processes.pid.as_slice(), definitions.devices.index.as_slice()),
        (&[7, 7][..], &[0, 0][..])
    );
    for row in events.kernel.rows() {
        let process: Process = definitions.get(definitions.process_of_stream(row.stream)).unwrap();
        let name = definitions.kernel_name(row.shape);
        assert_eq!(format!("rank{}.json", name.rsplit(' ').next().unwrap()), definitions.string(process.source));
    }
    for row in events.launch.rows() {
        let thread: Thread = definitions.get(row.thread).unwrap();
        assert_eq!(thread.process, definitions.process_of_stream(row.stream), "a call and its kernel are of one rank");
    }
}

#[test]
fn what_is_no_trace_is_told_and_left_out() {
    let (zero, one) = (rank(0), rank(1));
    let folder = folder(&[
        ("a_copy.json", zero.as_bytes()),
        ("rank0.json", zero.as_bytes()),
        ("rank1.json", one.as_bytes()),
        ("README.md", b"# How this was recorded"),
        (".hidden.json", b"{"),
    ]);
    let old = folder.path().join("ranks/old.ktape");
    let made = analyze(["import", fixture("modern.json").to_str().unwrap(), "-o", old.to_str().unwrap()]);
    assert_eq!(made.status.code(), Some(0));
    std::fs::create_dir(folder.path().join("ranks/more")).unwrap();
    std::fs::write(folder.path().join("ranks/more/rank2.json"), rank(2)).unwrap();
    let (output, summary) = import(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(0));
    let why = left_out(&summary);
    assert_eq!(
        why.keys().copied().collect::<Vec<_>>(),
        ["README.md", "a_copy.json", "more", "old.ktape", "rank0.json", "rank1.json"]
    );
    for (name, part) in [
        ("README.md", "not JSON"),
        ("more", "a folder"),
        ("old.ktape", "a tape already"),
        ("rank0.json", "byte for byte the same as a_copy.json"),
    ] {
        assert!(why[name].as_str().unwrap().contains(part), "{name}: {}", why[name]);
    }
    assert_eq!(read(&folder.path().join("ranks.ktape")).definitions.processes.pid.len(), 2);
    let (tape, ranks) = (folder.path().join("out.ktape"), folder.path().join("ranks"));
    let text = analyze(["import", ranks.to_str().unwrap(), "-o", tape.to_str().unwrap()]).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("more: left out: a folder") && text.contains("rank1.json: 3 entries, rank 1"), "{text}");
}

#[test]
fn one_rank_twice_is_told_and_kept() {
    let (zero, again) = (rank(0), rank(0).replace("op of 0", "another step"));
    let folder = folder(&[("step1.json", zero.as_bytes()), ("step2.json", again.as_bytes())]);
    let (output, summary) = import(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(summary["files"][1]["same_rank_as"], "step1.json");
    assert_eq!(read(&folder.path().join("ranks.ktape")).definitions.processes.pid.len(), 2);
}

#[test]
fn a_broken_rank_stops_all_of_it_unless_lenient() {
    let (zero, one) = (rank(0), rank(1));
    let folder = folder(&[("rank0.json", zero.as_bytes()), ("rank1.json", &one.as_bytes()[..one.len() - 40])]);
    let (output, _) = import(folder.path(), &[]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
    assert!(error.contains("rank1.json: byte ") && error.contains("--lenient"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the folder is there");
    let (output, summary) = import(folder.path(), &["--lenient"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!((&summary["broken"]["left_out"], summary["broken"]["cut"].is_string()), (&1.into(), true));
    let contents = read(&folder.path().join("ranks.ktape"));
    assert_eq!((contents.events.slice.len(), contents.events.launch.len(), contents.events.kernel.len()), (2, 2, 1));
    // The loss is the second rank's.
    for row in contents.events.loss.rows() {
        let process: Process = contents.definitions.get(row.process).unwrap();
        assert_eq!(contents.definitions.string(process.source), "rank1.json");
    }
}

/// Nothing of it can be kept, but the others can, and what is missing is told at their time.
#[test]
fn a_rank_cut_before_its_events_is_a_loss() {
    let zero = rank(0).replacen('{', r#"{"baseTimeNanoseconds": 1700000000000000000, "#, 1);
    let folder = folder(&[("rank0.json", zero.as_bytes()), ("rank1.json", br#"{"distributedInfo": {"rank": 1, "#)]);
    let (output, _) = import(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let (output, summary) = import(folder.path(), &["--lenient"]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(summary["broken"]["left_out"], 1);
    assert!(left_out(&summary)["rank1.json"].as_str().unwrap().contains("ends in the middle of its JSON"));
    let contents = read(&folder.path().join("ranks.ktape"));
    assert_eq!((contents.events.slice.len(), contents.events.kernel.len()), (1, 1));
    let losses: Vec<_> = contents.events.loss.rows().collect();
    let [loss] = losses[..] else { panic!("{losses:?}") };
    assert_eq!((loss.start_ns, loss.duration_ns), (1_700_000_000_000_001_000, 3_000));
    assert!(contents.definitions.string(loss.cause).starts_with("rank1.json was not imported"));
    let ranks = folder.path().join("ranks.ktape");
    let info = analyze(["info", ranks.to_str().unwrap()]);
    let said = String::from_utf8(info.stdout).unwrap();
    assert!(said.contains("a number not known at 0.000000 s: rank1.json"), "{said}");
}

/// Reading them could wait for ever.
#[cfg(unix)]
#[test]
fn what_is_no_file_is_told() {
    let zero = rank(0);
    let folder = folder(&[("rank0.json", zero.as_bytes())]);
    let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("ranks/socket")).unwrap();
    let (output, summary) = import(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(left_out(&summary)["socket"], "a pipe, socket or device; name it to import what comes out of it");
}

#[test]
fn a_folder_without_a_trace_is_refused() {
    let readme: &[(&str, &[u8])] = &[("README.md", b"# Nothing here")];
    for (files, why) in
        [(&[][..], "a folder without a file in it"), (readme, "without a trace in it; its first file, README.md")]
    {
        let folder = folder(files);
        let (output, _) = import(folder.path(), &[]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
        assert!(error.contains(why), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
    }
}

#[test]
fn reports_take_a_folder_too() {
    let (zero, one) = (rank(0), rank(1));
    let folder = folder(&[("rank0.json", zero.as_bytes()), ("rank1.json", one.as_bytes())]);
    let ranks = folder.path().join("ranks");
    let info = analyze(["info", ranks.to_str().unwrap(), "--json"]);
    assert_eq!(info.status.code(), Some(0), "{}", String::from_utf8_lossy(&info.stderr));
    let trace = folder.path().join("out.pftrace");
    let perfetto = analyze(["perfetto", ranks.to_str().unwrap(), "-o", trace.to_str().unwrap()]);
    assert_eq!(perfetto.status.code(), Some(0), "{}", String::from_utf8_lossy(&perfetto.stderr));
    assert!(std::fs::metadata(trace).unwrap().len() > 0);
}

/// Eight real ranks of one step: the whole is the sum of its parts, and keeps them apart.
#[test]
fn eight_real_ranks_are_the_sum_of_each_alone() {
    let Some(shared) = shared() else { return };
    let mut files = Vec::new();
    let mut folders = vec![shared.join("traces/facebookresearch+param")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.to_string_lossy().ends_with(".pt.trace.json.gz") => files.push(path),
                false => {}
            }
        }
    }
    files.sort();
    assert_eq!(files.len(), 8);
    let ranks = files[0].parent().unwrap();
    let (whole, _) = super::import(ranks).unwrap();
    let mut sums = BTreeMap::<&str, usize>::new();
    for file in &files {
        let (alone, _) = super::import(file).unwrap();
        alone.events.counts().into_iter().for_each(|(kind, rows)| *sums.entry(kind).or_default() += rows);
    }
    assert_eq!(whole.events.counts().into_iter().collect::<BTreeMap<_, _>>(), sums);
    let definitions = &whole.definitions;
    let rank_of = |id: u32| definitions.property(DefinitionKind::Process as u16, id, property::RANK);
    let with_rank: Vec<u32> =
        (1..=definitions.processes.pid.len() as u32).filter(|id| rank_of(*id).is_some()).collect();
    let ranks: BTreeSet<&str> = with_rank.iter().filter_map(|id| rank_of(*id)).collect();
    assert_eq!((with_rank.len(), ranks), (8, ["0", "1", "2", "3", "4", "5", "6", "7"].into()));
    let mut ranks_with_work = BTreeSet::new();
    for row in whole.events.kernel.rows() {
        ranks_with_work.insert(definitions.process_of_stream(row.stream));
    }
    assert_eq!(ranks_with_work, with_rank.iter().copied().collect());
    let owners: BTreeSet<(u32, u32)> =
        definitions.devices.process.iter().copied().zip(definitions.devices.index.iter().copied()).collect();
    assert_eq!(owners.len(), definitions.devices.index.len(), "no device is of two ranks");
}

/// Of the files that are as long as it is, the first is another.
#[test]
fn the_same_file_is_found_among_others_of_its_length() {
    let (zero, one) = (rank(0), rank(1));
    let folder = folder(&[("a.json", zero.as_bytes()), ("b.json", one.as_bytes()), ("c.json", one.as_bytes())]);
    let (output, summary) = import(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(left_out(&summary)["c.json"], "byte for byte the same as b.json");
}

/// The lock files of editors are links that lead nowhere.
#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_named_unless_it_is_hidden() {
    let zero = rank(0);
    let folder = folder(&[("rank0.json", zero.as_bytes())]);
    let link = |name: &str| std::os::unix::fs::symlink("nowhere", folder.path().join("ranks").join(name)).unwrap();
    link(".#rank0.json");
    assert_eq!(import(folder.path(), &[]).0.status.code(), Some(0));
    link("rank1.json");
    let (output, _) = import(folder.path(), &["--force"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("rank1.json: cannot read it"), "{error}");
}

/// It is a trace, so it is not left out like a README.
#[test]
fn a_trace_with_times_beyond_the_clock_stops_the_import() {
    let (zero, one) = (rank(0), rank(1).replacen('{', r#"{"baseTimeNanoseconds": 9223372036854775807, "#, 1));
    let folder = folder(&[("rank0.json", zero.as_bytes()), ("rank1.json", one.as_bytes())]);
    let (output, _) = import(folder.path(), &[]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("rank1.json: its times"), "{error}");
}

/// Shown with replacement characters, both would be one.
#[cfg(target_os = "linux")]
#[test]
fn names_that_are_no_utf8_stay_two_processes() {
    use std::os::unix::ffi::OsStrExt as _;
    let (zero, one) = (rank(0), rank(1));
    let folder = folder(&[]);
    for (name, text) in [(&b"a\xfe.json"[..], zero), (b"a\xff.json", one)] {
        std::fs::write(folder.path().join("ranks").join(std::ffi::OsStr::from_bytes(name)), text).unwrap();
    }
    let (output, summary) = import(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(left_out(&summary), [("a\\xfe.json", &Value::Null), ("a\\xff.json", &Value::Null)].into());
    assert_eq!(read(&folder.path().join("ranks.ktape")).definitions.processes.pid, [7, 7]);
}
