//! Names of native frames on made-up tapes, in small libraries that are compiled here.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ktape_format::definition::{Frame, Stack};
use ktape_format::event::Launch;
use ktape_format::{Memory, Sink as _};
use object::{Object as _, ObjectSymbol as _};

use super::*;
use crate::timeline::Timeline;
use crate::timeline::names::FrameName;

const SOURCE: &str = "\
static volatile int kept;
static inline __attribute__((always_inline)) void put_into_it(int x) {
    kept = x;
    kept = x + 1;
}
static __attribute__((noinline)) int c_function(int x) {
    put_into_it(x);
    return kept;
}
namespace outer { __attribute__((noinline)) int method(const char *text, int x) { return kept + *text + x; } }
extern \"C\" int exported(int x) { return c_function(x) + outer::method(\"a\", x); }
";

/// A folder with a library, `libmade.so`, compiled with further options. `None`, and said, where there is no compiler.
fn made(options: &[&str]) -> Option<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, library) = (folder.path().join("made.cpp"), folder.path().join("libmade.so"));
    fs::write(&source, SOURCE).expect("the source");
    let mut compiler = Command::new("c++");
    compiler.args(["-shared", "-fPIC", "-O2", "-Wl,--build-id=sha1", "-o"]).arg(&library).arg(&source).args(options);
    let Ok(output) = compiler.current_dir(folder.path()).output() else {
        writeln!(std::io::stderr(), "SKIPPED: names of native frames: no C++ compiler").expect("stderr is open");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some((folder, library))
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("binutils come with the compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The address of a function, by a part of its symbol, and the library's build id.
fn facts(library: &Path, symbol: &str) -> (u64, String) {
    let bytes = fs::read(library).expect("the library");
    let elf = object::File::parse(&*bytes).expect("an ELF file");
    let found = elf.symbols().find(|known| known.name().is_ok_and(|name| name.contains(symbol))).expect("the function");
    let build_id = elf.build_id().expect("notes").expect("a build id");
    (found.address(), build_id.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A timeline of one launch, whose stack is a Python function and these places in a file, outermost first.
fn timeline(path: &str, build_id: &str, addresses: &[u64]) -> Timeline {
    let mut memory = Memory::default();
    let Ok(name) = memory.string("main");
    let Ok(frame) = memory.define(Frame { kind: frame_kind::PYTHON, name, file: 0, line: 0 });
    let Ok(mut stack) = memory.define(Stack { parent: 0, frame, line: 0 });
    let Ok(file) = memory.string(path);
    for address in addresses {
        let Ok(name) = memory.string(&format!("libmade.so+{address:#x}"));
        let Ok(frame) = memory.define(Frame { kind: frame_kind::NATIVE, name, file, line: 0 });
        let Ok(id) = memory.define(Stack { parent: stack, frame, line: 0 });
        stack = id;
    }
    let Ok(()) = memory.property(DefinitionKind::String as u16, file, property::BUILD_ID, build_id);
    let Ok(()) = memory.event(Launch { stack, ..Launch::default() });
    Timeline::new(memory.definitions, memory.events)
}

/// The stack of the launch, outermost first, after its frames were named, and what was not.
fn named(mut timeline: Timeline, folders: &[&Path]) -> (Vec<String>, Unnamed) {
    let symbols = Symbols { folders: folders.iter().map(|&folder| folder.to_owned()).collect() };
    let (names, unnamed) = names(&timeline.definitions, &symbols);
    timeline.name_native_frames(&names);
    let nodes = timeline.definitions.stack_nodes(timeline.events.launch.stack[0]);
    let mut stack: Vec<String> =
        nodes.map(|(_, node)| FrameName::of_stack(&timeline.definitions, &node).short()).collect();
    stack.reverse();
    (stack, unnamed)
}

#[test]
fn symbols_name_frames_where_the_file_still_is() {
    let Some((_folder, library)) = made(&[]) else { return };
    let path = library.to_str().expect("text");
    let ((c, build_id), (method, _)) = (facts(&library, "c_function"), facts(&library, "method"));
    let (stack, unnamed) = named(timeline(path, &build_id, &[c, method + 1]), &[]);
    assert_eq!(stack, ["main", "c_function (libmade.so)", "outer::method (libmade.so)"]);
    assert_eq!(unnamed, Unnamed { of: 2, ..Unnamed::default() });
    // What is in no function has no name.
    let (stack, unnamed) = named(timeline(path, &build_id, &[c, 0x7_ffff_ffff]), &[]);
    assert_eq!(stack, ["main", "c_function (libmade.so)", "libmade.so+0x7ffffffff"]);
    assert_eq!((unnamed.frames, unnamed.of), (1, 2));
}

#[test]
fn debug_information_tells_lines_and_what_was_inlined() {
    for options in [&["-g"][..], &["-g", "-gz=zlib"]] {
        let Some((_folder, library)) = made(options) else { return };
        let (address, build_id) = facts(&library, "c_function");
        // The first instructions are those of the function that was put into it.
        let context = (address..address + 16)
            .map(|address| named(timeline(library.to_str().expect("text"), &build_id, &[address]), &[]).0);
        let inlined = context.into_iter().find(|stack| stack.len() == 3).expect("a place in the inlined function");
        assert_eq!(inlined[0], "main");
        assert!(inlined[1].starts_with("c_function (") && inlined[1].ends_with("made.cpp:7)"), "{inlined:?}");
        assert!(inlined[2].starts_with("put_into_it (") && inlined[2].contains("made.cpp:"), "{inlined:?}");
    }
}

#[test]
fn a_stripped_library_is_named_by_its_debug_file_wherever_that_is() {
    let Some((folder, library)) = made(&["-g"]) else { return };
    let (address, build_id) = facts(&library, "c_function");
    let path = library.to_str().expect("text").to_owned();
    let debug = folder.path().join("separate");
    run("objcopy", &["--only-keep-debug", &path, debug.to_str().expect("text")]);
    run("strip", &["--strip-all", &path]);
    let tape = || timeline(&path, &build_id, &[address]);
    let (stack, unnamed) = named(tape(), &[]);
    assert_eq!(stack, ["main", &format!("libmade.so+{address:#x}")], "a local function is not among exported ones");
    let said = unnamed.to_string();
    assert!(said.starts_with("1 of 1 native frames have no name: no symbols of libmade.so"), "{said}");
    assert!(said.contains("--symbols DIR"), "{said}");

    let (first, rest) = build_id.split_at(2);
    for place in [format!(".build-id/{first}/{rest}.debug"), "any-name".to_owned()] {
        let symbols = tempfile::tempdir().expect("a folder");
        let file = symbols.path().join(&place);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::copy(&debug, &file).expect("a copy");
        let (stack, unnamed) = named(tape(), &[symbols.path()]);
        assert!(stack[1].starts_with("c_function (") && stack[1].contains("made.cpp:"), "{place}: {stack:?}");
        assert_eq!(unnamed.frames, 0);
        // With the library gone, as on another machine.
        let (stack, _) = named(timeline("/no/such/libmade.so", &build_id, &[address]), &[symbols.path()]);
        assert!(stack[1].starts_with("c_function ("), "{place}: {stack:?}");
    }
}

#[test]
fn a_file_of_another_build_names_nothing() {
    let Some((folder, library)) = made(&[]) else { return };
    let (address, build_id) = facts(&library, "c_function");
    let path = library.to_str().expect("text");
    let other = build_id.replace(|c: char| c.is_ascii_digit(), "a");
    for (path, build_id) in [(path, other.as_str()), (path, ""), (path, "../../etc"), ("/dev/zero", &build_id)] {
        let (stack, unnamed) = named(timeline(path, build_id, &[address]), &[]);
        assert!(stack[1].starts_with(&format!("libmade.so+{address:#x}")), "{path} {build_id}: {stack:?}");
        assert_eq!((stack.len(), unnamed.frames), (2, 1), "{path} {build_id}");
    }
    // But one at another place, of this build, is it.
    let (stack, _) = named(timeline("/dev/zero", &build_id, &[address]), &[folder.path()]);
    assert!(stack[1].starts_with("c_function"), "{stack:?}");
}

#[test]
fn a_path_that_meant_two_builds_is_found_by_its_build() {
    let Some((_folder, library)) = made(&[]) else { return };
    let (address, build_id) = facts(&library, "c_function");
    let path = format!("{} (build id {build_id})", library.display());
    let (stack, _) = named(timeline(&path, &build_id, &[address]), &[]);
    assert!(stack[1].starts_with("c_function"), "{stack:?}");
}

#[test]
fn damaged_files_name_what_they_can_and_break_nothing() {
    let Some((folder, library)) = made(&["-g"]) else { return };
    let (address, build_id) = facts(&library, "c_function");
    let whole = fs::read(&library).expect("the library");
    let damaged = folder.path().join("damaged.so");
    let tape = || timeline(damaged.to_str().expect("text"), &build_id, &[address, address + 5]);
    let mut bytes = whole.clone();
    for at in (0..whole.len()).step_by(whole.len() / 150) {
        fs::write(&damaged, &whole[..at]).expect("a file");
        let (stack, _) = named(tape(), &[]);
        assert!(stack.len() >= 3, "{stack:?}");
        // Lengths and offsets that are huge, odd or backwards.
        for value in [0xff, 0x80, 0] {
            bytes[at..].iter_mut().take(8).for_each(|byte| *byte = value);
            fs::write(&damaged, &bytes).expect("a file");
            assert!(named(tape(), &[]).0.len() >= 3);
            bytes.copy_from_slice(&whole);
        }
    }
    // Section by section, in the table of sections itself.
    let table = whole.len() - whole.len().min(64 * 40);
    for at in (table..whole.len() - 8).step_by(8) {
        bytes[at..at + 8].copy_from_slice(&0x7fff_ffff_ffff_fff0_u64.to_le_bytes());
        fs::write(&damaged, &bytes).expect("a file");
        assert!(named(tape(), &[]).0.len() >= 3);
        bytes.copy_from_slice(&whole);
    }
}

#[test]
fn frames_that_become_several_keep_every_stack_with_its_events() {
    let mut memory = Memory::default();
    let mut stack = |parent: u32, kind: u8, text: &str| {
        let Ok(name) = memory.string(text);
        let Ok(frame) = memory.define(Frame { kind, name, file: 0, line: 0 });
        let Ok(id) = memory.define(Stack { parent, frame, line: 0 });
        (id, frame)
    };
    let (main, _) = stack(0, frame_kind::PYTHON, "main");
    let (native, frame) = stack(main, frame_kind::NATIVE, "lib+0x1");
    let (callee, _) = stack(native, frame_kind::PYTHON, "callback");
    for stack in [callee, main, native, 0, 99] {
        let Ok(()) = memory.event(Launch { stack, start_ns: stack.into(), ..Launch::default() });
    }
    let mut timeline = Timeline::new(memory.definitions, memory.events);
    let function = |name: &str, line| Function { name: name.to_owned(), file: "lib.c".to_owned(), line };
    timeline.name_native_frames(&Named::from_iter([(frame, vec![function("outer", 7), function("inner", 3)])]));
    let text = |stack: u32| {
        let nodes = timeline.definitions.stack_nodes(stack);
        nodes.map(|(_, node)| FrameName::of_stack(&timeline.definitions, &node).full()).collect::<Vec<_>>().join(" < ")
    };
    let stacks: Vec<String> = timeline.events.launch.stack.iter().map(|&stack| text(stack)).collect();
    let native = "inner (lib.c:3) < outer (lib.c:7) < main";
    assert_eq!(stacks, ["", "main", native, &format!("callback < {native}"), ""]);
}
