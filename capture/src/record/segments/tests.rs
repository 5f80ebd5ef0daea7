use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use ktape_format::definition::{Frame, Function, KernelName, Process, Shape, Stack, Thread, property};
use ktape_format::event::{Launch, Rollup, Sync};
use ktape_format::header::ClockKind;
use ktape_format::recording::Recording;
use ktape_format::{Row as _, Table as _, Tape, Wanted};

use super::*;

fn options(directory: &Path) -> Options {
    let time = Duration::from_secs(3600);
    Options { directory: directory.to_owned(), size_bytes: 64 << 20, time, keep_bytes: None, keep_age: None }
}

fn tape_options() -> TapeOptions {
    TapeOptions { half_bytes: 64 << 10, ..TapeOptions::live("test", ClockKind::Monotonic, "host") }
}

/// One that waits where the disk is slow: nothing is lost.
fn patient() -> TapeOptions {
    TapeOptions { when_full: ktape_format::WhenFull::Wait, ..tape_options() }
}

/// Makes calls as a collector does: what it defined once it refers to for ever.
struct Collector {
    process: u32,
    thread: u32,
    function: u32,
    stacks: Vec<u32>,
    shapes: Vec<u32>,
    now_ns: i64,
}

impl Collector {
    fn begin(segments: &mut Segments) -> Collector {
        let process = segments.define(Process { pid: 7, start_ns: 1, ..Process::default() }).unwrap();
        segments.property(Process::KIND, process, property::NAME, "python").unwrap();
        let thread = segments.define(Thread { process, tid: 7 }).unwrap();
        let name = segments.string("cuLaunchKernel").unwrap();
        let function = segments.define(Function { name, ..Function::default() }).unwrap();
        let (mut stacks, mut shapes) = (Vec::new(), Vec::new());
        for index in 0..10 {
            let name = segments.string(&format!("function {index}")).unwrap();
            let frame = segments.define(Frame { name, ..Frame::default() }).unwrap();
            let parent = stacks.last().copied().unwrap_or(0);
            stacks.push(segments.define(Stack { parent, frame, line: index }).unwrap());
            let name = segments.string(&format!("kernel {index}")).unwrap();
            let kernel = segments.define(KernelName { name, module: 0 }).unwrap();
            shapes.push(segments.define(Shape { kernel, grid_x: 1, ..Shape::default() }).unwrap());
        }
        Collector { process, thread, function, stacks, shapes, now_ns: 0 }
    }

    /// A launch of this stack and kernel.
    fn launch(&mut self, of: usize, segments: &mut Segments) {
        self.now_ns += 1000;
        let row = Launch {
            start_ns: self.now_ns,
            duration_ns: 100 * of as u64,
            thread: self.thread,
            shape: self.shapes[of],
            stack: self.stacks[of],
            function: self.function,
            ..Launch::default()
        };
        segments.event(row).unwrap();
    }

    fn rotate(&self, segments: &mut Segments) {
        let rotated = segments.rotate(|keep| {
            keep(DefinitionKind::Process, self.process);
            keep(DefinitionKind::Function, self.function);
            self.stacks.iter().for_each(|&id| keep(DefinitionKind::Stack, id));
            self.shapes.iter().for_each(|&id| keep(DefinitionKind::Shape, id));
        });
        assert!(rotated.unwrap());
    }
}

/// Launches by name of their stack's innermost function and of their kernel: how many, and how long together.
type Totals = BTreeMap<(String, String), (u64, u64)>;

/// All that the directory tells: of tapes, or of rollups where there is no tape.
fn totals(directory: &Path) -> (Totals, usize) {
    let mut totals = Totals::new();
    let recording = Recording::list(directory).unwrap();
    for segment in &recording.segments {
        add(segment.tape.as_ref().or(segment.rollup.as_ref()).unwrap(), &mut totals);
    }
    (totals, recording.segments.len())
}

fn add(path: &Path, totals: &mut Totals) {
    let contents = Tape::open(path).unwrap().read(&Wanted::default()).unwrap();
    assert_eq!(contents.damage, []);
    let definitions = &contents.definitions;
    let function = |stack: u32| {
        let frame = definitions.get::<Stack>(stack).and_then(|stack| definitions.get::<Frame>(stack.frame)).unwrap();
        definitions.string(frame.name).to_owned()
    };
    let kernel = |id: u32| definitions.string(definitions.get::<KernelName>(id).unwrap().name).to_owned();
    let mut add = |stack, id, count, sum_ns| {
        let sums = totals.entry((function(stack), kernel(id))).or_default();
        *sums = (sums.0 + count, sums.1 + sum_ns);
    };
    for row in contents.events.launch.rows() {
        add(row.stack, definitions.get::<Shape>(row.shape).unwrap().kernel, 1, row.duration_ns);
    }
    for row in contents.events.rollup.rows().filter(|row| row.kind == Launch::KIND) {
        add(row.stack, row.kernel, row.count, row.sum_ns);
    }
}

#[test]
fn a_segment_has_what_its_rows_refer_to_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let mut segments = Segments::begin(options(folder.path()), tape_options()).unwrap();
    let mut collector = Collector::begin(&mut segments);
    for of in [0, 3, 3, 9] {
        collector.launch(of, &mut segments);
        collector.rotate(&mut segments);
    }
    let finished = segments.finish();
    assert_eq!((finished.failure, finished.troubles), (None, vec![]));
    let recording = Recording::list(folder.path()).unwrap();
    assert_eq!(recording.segments.len(), 5);
    let depths = recording.segments.iter().map(|segment| {
        let tape = Tape::open(segment.tape.as_ref().unwrap()).unwrap();
        assert!(tape.is_closed());
        let contents = tape.read(&Wanted::default()).unwrap();
        let definitions = &contents.definitions;
        if !contents.events.launch.is_empty() {
            assert_eq!(definitions.property(Process::KIND, 1, property::NAME), Some("python"));
        }
        (definitions.stacks.len(), definitions.kernels.len(), definitions.processes.len())
    });
    assert_eq!(depths.collect::<Vec<_>>(), [(1, 1, 1), (4, 1, 1), (4, 1, 1), (10, 1, 1), (0, 0, 0)]);
    assert!(recording.segments.iter().all(|segment| segment.rollup.is_some()));
}

#[test]
fn what_nobody_keeps_is_forgotten_and_what_is_kept_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut segments = Segments::begin(options(folder.path()), tape_options()).unwrap();
    let mut collector = Collector::begin(&mut segments);
    let mut sizes = Vec::new();
    for round in 0..6 {
        // A process that comes and goes, with a stack of its own.
        let process = segments.define(Process { pid: 100 + round, ..Process::default() }).unwrap();
        segments.property(Process::KIND, process, property::NAME, &format!("worker {round}")).unwrap();
        let thread = segments.define(Thread { process, tid: 100 }).unwrap();
        let name = segments.string(&format!("only here {round}")).unwrap();
        let frame = segments.define(Frame { name, ..Frame::default() }).unwrap();
        let stack = segments.define(Stack { parent: collector.stacks[9], frame, line: 0 }).unwrap();
        let shape = collector.shapes[0];
        segments.event(Launch { thread, stack, shape, ..Launch::default() }).unwrap();
        collector.launch(round as usize, &mut segments);
        collector.rotate(&mut segments);
        sizes.push(segments.definitions());
    }
    // What was used in the segment that ended stays for one more.
    assert!(sizes[1..].iter().all(|size| *size == sizes[1]), "{sizes:?}");
    let finished = segments.finish();
    assert_eq!((finished.failure, finished.troubles), (None, vec![]));
    let (totals, _) = totals(folder.path());
    assert_eq!(totals.values().map(|(count, _)| count).sum::<u64>(), 12);
    assert_eq!(totals[&("only here 3".to_owned(), "kernel 0".to_owned())], (1, 0));
}

#[test]
fn an_id_that_was_forgotten_is_none_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut segments = Segments::begin(options(folder.path()), tape_options()).unwrap();
    let stale = segments.string("gone").unwrap();
    segments.rotate(|_| ()).unwrap();
    assert_ne!(segments.string("in its place").unwrap(), stale);
    segments.event(Launch { args: stale, ..Launch::default() }).unwrap();
    assert_eq!(segments.finish().troubles, ["1 references to definitions that had been forgotten"]);
}

#[test]
fn rollups_stand_for_the_segments_that_retention_deletes_while_a_reader_reads_on() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { size_bytes: 1 << 20, keep_bytes: Some(2 << 20), ..options(folder.path()) };
    let mut segments = Segments::begin(options, patient()).unwrap();
    let mut collector = Collector::begin(&mut segments);
    let mut expected = Totals::new();
    let mut reader = None;
    for round in 0..30 {
        for index in 0..30_000 {
            let of = (index * index + round) % 10;
            // Times that do not compress.
            collector.now_ns += (index as i64 * 2_654_435_761) % 1_000_003;
            collector.launch(of, &mut segments);
            let sums = expected.entry((format!("function {of}"), format!("kernel {of}"))).or_default();
            *sums = (sums.0 + 1, sums.1 + 100 * of as u64);
        }
        collector.rotate(&mut segments);
        if round == 0 {
            let recording = Recording::list(folder.path()).unwrap();
            reader = Some(Tape::open(recording.segments[0].tape.as_ref().unwrap()).unwrap());
        }
        // A disk with room for a while: the keeper has to come along, or nothing is deleted before the end.
        while segments.keeper.waiting() > 1 {
            std::thread::yield_now();
        }
    }
    let finished = segments.finish();
    assert_eq!((finished.failure, finished.troubles), (None, vec![]));
    let recording = Recording::list(folder.path()).unwrap();
    let kept = recording.segments.iter().filter(|segment| segment.tape.is_some()).count();
    assert!((1..25).contains(&kept), "{kept} of 31 are left, {} bytes", finished.bytes);
    assert!(finished.bytes < 2 << 20, "{}", finished.bytes);
    assert!(recording.segments[0].tape.is_none() && recording.segments.last().unwrap().tape.is_some());
    assert_eq!(totals(folder.path()).0, expected);
    let read = reader.unwrap().read(&Wanted::default()).unwrap();
    assert!(read.damage.is_empty() && !read.events.launch.is_empty());
}

#[test]
fn a_segment_ends_when_it_is_long_enough() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { size_bytes: 600 << 10, ..options(folder.path()) };
    let mut segments = Segments::begin(options, patient()).unwrap();
    let mut collector = Collector::begin(&mut segments);
    let began = Instant::now();
    let mut rotated = 0;
    let mut launched = 0;
    while rotated < 2 && began.elapsed() < Duration::from_secs(60) {
        for index in 0..20_000 {
            collector.now_ns += index * 7919 % 100_003;
            collector.launch((index % 10) as usize, &mut segments);
            launched += 1;
        }
        segments.looked -= LOOK;
        segments.tend().unwrap();
        if segments.is_due() {
            collector.rotate(&mut segments);
            rotated += 1;
        }
    }
    assert_eq!(rotated, 2);
    assert_eq!(segments.finish().failure, None);
    assert_eq!(totals(folder.path()).0.values().map(|(count, _)| count).sum::<u64>(), launched);
}

/// It went on for hours into a file without a name, and ended with 0.
#[test]
fn a_segment_or_directory_that_is_deleted_under_the_recorder_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("node");
    let mut segments = Segments::begin(options(&directory), patient()).unwrap();
    let look = |segments: &mut Segments| {
        segments.looked -= LOOK;
        segments.tend()
    };
    look(&mut segments).unwrap();
    assert!(!segments.is_due() && segments.take_troubles().is_empty());
    std::fs::remove_file(directory.join(segments.name.tape())).unwrap();
    look(&mut segments).unwrap();
    assert!(segments.is_due(), "the next has a name again");
    assert!(segments.take_troubles().concat().contains("was deleted while it was written"));
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(look(&mut segments).unwrap_err().to_string().contains("node was deleted under the recorder"));
    assert!(segments.finish().failure.is_some_and(|why| why.contains("was deleted")));
}

#[test]
fn only_one_recorder_and_no_link() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("recording");
    let segments = Segments::begin(options(&directory), tape_options()).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let tape = Recording::list(&directory).unwrap().segments[0].tape.clone().unwrap();
    assert_eq!((mode(&directory), mode(&tape)), (0o700, 0o600));
    let refused = |directory: &Path| match Segments::begin(options(directory), tape_options()) {
        Ok(_) => panic!("was begun"),
        Err(error) => format!("{error:#}"),
    };
    assert!(refused(&directory).ends_with("another recorder writes into it"));
    segments.finish();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&directory, &link).unwrap();
    assert!(refused(&link).ends_with("it is a link or no directory"));
    assert!(refused(&link.join("")).ends_with("it is a link or no directory"));
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(refused(&directory).ends_with("everybody may write into it"));
}

/// Names the directory to a child that records until it is killed.
const CHILD: &str = "KTAPE_TEST_RECORD_INTO";

/// The child of the next test; by itself it does nothing.
#[test]
fn records_until_it_is_killed() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    let mut options = options(Path::new(&directory));
    options.keep_bytes = Some(options.size_bytes + (1 << 20));
    let mut segments = Segments::begin(options, tape_options()).unwrap();
    let mut collector = Collector::begin(&mut segments);
    loop {
        (0..1000).for_each(|index| collector.launch(index % 10, &mut segments));
        collector.rotate(&mut segments);
        segments.tend().unwrap();
        while segments.keeper.waiting() > 1 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_recorder_that_is_killed_100_times_loses_nothing_and_counts_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("recording");
    let mut last = 0;
    for round in 0..100 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "record::segments::tests::records_until_it_is_killed", "--test-threads=1"])
            .env(CHILD, &directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // At other points each time, but not before it has begun.
        let began = Instant::now();
        while Recording::list(&directory).map_or(0, |recording| recording.last()) == last
            && began.elapsed() < Duration::from_secs(30)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(round % 20));
        child.kill().unwrap();
        child.wait().unwrap();
        let recording = Recording::list(&directory).unwrap();
        assert!(recording.last() > last, "the numbers go on");
        last = recording.last();
    }
    // One that ends by itself does what was left to do.
    let segments = Segments::begin(options(&directory), tape_options()).unwrap();
    let finished = segments.finish();
    assert_eq!((finished.failure, finished.troubles), (None, vec![]));
    let recording = Recording::list(&directory).unwrap();
    assert_eq!(recording.superseded, Vec::<PathBuf>::new());
    let mut next = 1;
    for segment in &recording.segments {
        assert_eq!(segment.name.segments.0, next, "no number is there twice or not at all");
        next = segment.name.segments.1 + 1;
        assert!(segment.rollup.is_some());
    }
    // Whole segments have 1,000 launches; one that was being written when its recorder was killed has up to as many, of which
    // none is without its stack.
    let launches: u64 = totals(&directory).0.values().map(|(count, _)| count).sum();
    assert!(launches > 1000 * (last - 102 - 100) && launches <= 1000 * last, "{launches} in {last} segments");
}

#[test]
fn on_a_full_disk_the_oldest_segments_go_and_what_has_no_room_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=44m", "tmpfs"]).arg(&disk).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("SKIPPED: only root can mount a small disk");
        return;
    }
    let finished = std::panic::catch_unwind(|| fill(&disk));
    let unmounted = Command::new("umount").arg(&disk).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    finished.unwrap();
}

/// Records three times what the disk holds.
fn fill(disk: &Path) {
    // The limit is beyond the disk: nothing is deleted before that is full.
    let options = Options { keep_bytes: Some(1 << 30), ..options(&disk.join("recording")) };
    let tape_options = TapeOptions { half_bytes: 2 << 20, ..tape_options() };
    let mut segments = Segments::begin(options, tape_options).unwrap();
    let mut collector = Collector::begin(&mut segments);
    let mut launched = 0;
    let mut state = 1_u64;
    for round in 0..240 {
        for _ in 0..60_000 {
            // Times that do not compress.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            collector.now_ns += (state >> 33) as i64;
            collector.launch((state >> 60) as usize % 10, &mut segments);
            launched += 1;
        }
        segments.looked -= LOOK;
        segments.tend().unwrap();
        if round % 3 == 2 {
            let _ = segments.rotate(|keep| {
                keep(DefinitionKind::Process, collector.process);
                keep(DefinitionKind::Function, collector.function);
                collector.stacks.iter().for_each(|&id| keep(DefinitionKind::Stack, id));
                collector.shapes.iter().for_each(|&id| keep(DefinitionKind::Shape, id));
            });
        }
    }
    let finished = segments.finish();
    println!("{finished:?}");
    assert_eq!(finished.failure, None);
    assert!(finished.troubles.iter().any(|trouble| trouble.contains("the disk was full")), "{:?}", finished.troubles);
    let recording = Recording::list(&disk.join("recording")).unwrap();
    let (mut rows, mut lost) = (0, 0);
    for segment in &recording.segments {
        let tape = Tape::open(segment.tape.as_ref().or(segment.rollup.as_ref()).unwrap()).unwrap();
        let contents = tape.read(&Wanted::default()).unwrap();
        assert_eq!(contents.damage, []);
        rows += contents.events.launch.len() as u64;
        rows += contents.events.rollup.rows().map(|row: Rollup| row.count).sum::<u64>();
        lost += contents.events.loss.rows().map(|row| row.count).sum::<u64>();
        assert_eq!(contents.events.sync.rows().next(), None::<Sync>);
    }
    assert_eq!(rows + lost, launched, "{rows} rows, {lost} lost");
    println!("{rows} of {launched} on the disk, {lost} lost");
    assert!(rows > launched / 10, "{rows} of {launched}");
}
