//! Interpreters wherever a process may have them: embedded, in libraries of any name, stripped, deleted, in another mount
//! namespace; and those that are refused.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ktape_capture::probes;
use ktape_capture::python::find::{Python, Refusal, find, locate};
use ktape_capture::python::memory::ProcessMemory;
use ktape_capture::python::{dealloc, in_file};
use ktape_capture::target::loader;
use ktape_ebpf::python::{KEY_BY_LIST, KEY_TLS};
use tempfile::TempDir;

use super::interpreters::{DIRECTORY, RUN, Workload, builds_of};
use super::live::assert_stopped;
use super::skip;

/// A program made of `embed.c`; none if there is no compiler, or it can't be linked.
fn embedding(folder: &Path, arguments: &[&str]) -> Option<PathBuf> {
    let program = folder.join("serve");
    let source = format!("{DIRECTORY}/embed.c");
    let linked = Command::new("cc").arg(source).arg("-o").arg(&program).args(arguments).arg("-ldl").output();
    match linked {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) => {
            skip(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("cc failed"));
            None
        }
        Err(_) => {
            skip("there is no C compiler");
            None
        }
    }
}

/// A build with its interpreter in a shared library: that, and its prefix.
fn shared(version: &str) -> Option<(PathBuf, PathBuf)> {
    let library = |prefix: &Path| {
        let name = format!("libpython{version}.so.1.0");
        ["lib", "lib/x86_64-linux-gnu"]
            .map(|folder| prefix.join(folder).join(&name))
            .into_iter()
            .find(|file| file.exists())
    };
    let prefixes = builds_of(version).into_iter().filter_map(|python| Some(python.parent()?.parent()?.to_owned()));
    let found = prefixes.filter_map(|prefix| Some((library(&prefix)?, prefix))).next();
    if found.is_none() {
        skip(&format!("there is no shared library of {version}"));
    }
    found
}

/// Every thread of the workload has the stack that it told of, wherever its interpreter was found.
fn assert_found(command: Command, version: &str) -> (Workload, Python) {
    let workload = Workload::of(command);
    let python = find(workload.pid()).unwrap();
    assert!(python.to_string().starts_with(&format!("CPython {version}")), "{python}");
    assert_ne!(python.interpreter.tss_key, KEY_BY_LIST);
    let memory = ProcessMemory::open(workload.pid()).unwrap();
    for stopped in &workload.stopped {
        assert_stopped(&memory, &python.interpreter, stopped);
    }
    (workload, python)
}

/// What a file tells of the interpreter in it is what a process that runs it has, wherever it was loaded; and a recorder knows the file
/// by the program.
fn assert_told(program: &Path, workload: &Workload) {
    let kernel = probes::Kernel::ask().unwrap();
    let found = locate(workload.pid()).unwrap();
    let file = &found.file;
    let is_it = |known: &PathBuf| known.canonicalize().unwrap() == file.canonicalize().unwrap();
    assert!(loader::pythons(program, |_| None).iter().any(is_it), "{} of {}", file.display(), program.display());
    let in_file = in_file::read(file).unwrap().expect("a CPython");
    let (told, told_dealloc) = (&in_file.python, in_file.dealloc(kernel).unwrap().expect("it frees code"));
    let dealloc = dealloc::find(workload.pid(), &found, kernel).unwrap().expect("it frees code");
    assert_eq!(told_dealloc.interpreter(told), dealloc.interpreter(&found), "{}", file.display());
    assert!(told_dealloc.interpreter(told).is_some());
    assert_eq!((told_dealloc.id, told_dealloc.file_offset), (dealloc.id, dealloc.file_offset));
    assert_eq!(told.version_hex, found.version_hex);
}

#[test]
fn a_file_tells_of_the_interpreter_that_its_processes_will_have() {
    for version in ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"] {
        for python in builds_of(version) {
            let mut command = Command::new(&python);
            command.args(["-c", RUN]);
            assert_told(&python, &Workload::of(command));
        }
    }
}

#[test]
fn files_that_are_no_python_tell_of_none() {
    let folder = TempDir::new().unwrap();
    let cut = folder.path().join("cut");
    let this = std::env::current_exe().unwrap();
    std::fs::write(&cut, &std::fs::read(&this).unwrap()[..100_000]).unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/usr/bin/env python3\n").unwrap();
    for file in [&this, &cut, &script] {
        assert!(in_file::read(file).unwrap().is_none(), "{}", file.display());
    }
    for file in [Path::new("/dev/zero"), Path::new("/nowhere"), folder.path()] {
        assert!(in_file::read(file).is_err(), "{}", file.display());
    }
}

/// A command that embeds a library under another name.
fn command_of_plugin(folder: &Path, version: &str) -> Option<Command> {
    let (library, prefix) = shared(version)?;
    let program = embedding(folder, &[])?;
    let plugin = folder.join("plugin.so");
    std::fs::copy(library, &plugin).unwrap();
    let mut command = Command::new(program);
    command.arg(plugin).args(["-c", RUN]).env("PYTHONHOME", prefix);
    Some(command)
}

#[test]
fn an_interpreter_in_a_library_of_any_name_is_found_also_when_that_is_deleted() {
    // The oldest do not tell their version: it is in paths that they were compiled with.
    for version in ["3.8", "3.9", "3.10", "3.12"] {
        let folder = TempDir::new().unwrap();
        let Some(command) = command_of_plugin(folder.path(), version) else { continue };
        let (workload, python) = assert_found(command, version);
        assert_eq!(python.file, folder.path().join("plugin.so"));
        std::fs::remove_file(&python.file).unwrap();
        let python = find(workload.pid()).unwrap();
        assert!(python.file.to_string_lossy().ends_with("plugin.so (deleted)"), "{python}");
    }
}

#[test]
fn an_interpreter_that_was_replaced_by_another_is_the_one_that_runs() {
    let folder = TempDir::new().unwrap();
    let Some(command) = command_of_plugin(folder.path(), "3.9") else { return };
    let Some((other, _)) = shared("3.12") else { return };
    let (workload, python) = assert_found(command, "3.9");
    std::fs::remove_file(&python.file).unwrap();
    std::fs::copy(other, &python.file).unwrap();
    assert!(find(workload.pid()).unwrap().to_string().starts_with("CPython 3.9"));
}

#[test]
fn an_interpreter_in_another_mount_namespace_is_found() {
    let (folder, hidden) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let Some(plugin) = command_of_plugin(folder.path(), "3.10") else { return };
    if !Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    {
        skip("mount namespaces can't be made here");
        return;
    }
    let script = "mount -t tmpfs none \"$1\" && cp \"$2\" \"$1/plugin.so\" && shift 2 && exec \"$@\"";
    let inside = hidden.path().join("plugin.so");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(hidden.path()).arg(folder.path().join("plugin.so"));
    command.arg(plugin.get_program()).arg(&inside).args(plugin.get_args().skip(1));
    command.envs(plugin.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let (_workload, python) = assert_found(command, "3.10");
    assert_eq!(python.file, inside);
    assert!(!inside.exists(), "it is here too");
}

#[test]
fn an_interpreter_that_is_linked_in_is_found_also_when_that_is_stripped() {
    let library = "/usr/lib/x86_64-linux-gnu/libpython3.11.a";
    if !Path::new(library).exists() {
        skip("there is no static library of 3.11");
        return;
    }
    let folder = TempDir::new().unwrap();
    let Some(program) = embedding(folder.path(), &["-DLINKED", "-no-pie", library, "-lm", "-lz", "-lexpat"]) else {
        return;
    };
    for is_stripped in [false, true] {
        if is_stripped {
            assert!(Command::new("strip").arg(&program).status().unwrap().success());
        }
        let mut command = Command::new(&program);
        // What it loads of the standard library needs nothing of the interpreter's symbols.
        command.args(["-c", "import time; print(flush=True); time.sleep(1000)"]);
        let mut child = command.stdout(Stdio::piped()).env("PYTHONHOME", "/usr").spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let python = find(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        let python = python.unwrap();
        assert_eq!((python.interpreter.layout.version, python.file), (0x030b, program.clone()));
    }
}

#[test]
fn an_interpreter_that_the_dynamic_linker_was_told_to_start_is_found() {
    let linker = "/lib64/ld-linux-x86-64.so.2";
    for version in ["3.11", "3.12"] {
        let Some(python) = builds_of(version).into_iter().next() else { continue };
        let mut command = Command::new(linker);
        command.arg(&python).args(["-c", RUN]);
        if let Some(prefix) = python.parent().and_then(Path::parent) {
            command.env("PYTHONHOME", prefix);
        }
        assert_found(command, version);
    }
}

#[test]
fn a_thread_local_state_is_found_in_an_executable_and_in_a_library() {
    let Some((library, prefix)) = shared("3.15") else { return };
    let folder = TempDir::new().unwrap();
    let Some(program) = embedding(folder.path(), &[]) else { return };
    let folder_of_libraries = library.parent().unwrap();
    // Its own C library has to be that of the whole process.
    let mut command = Command::new(folder_of_libraries.join("ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(folder_of_libraries).arg(&program).arg(&library).args(["-c", RUN]);
    command.env("PYTHONHOME", &prefix);
    let (_workload, python) = assert_found(command, "3.15");
    assert_eq!(python.interpreter.tss_key, KEY_TLS);
    assert_ne!(python.interpreter.tls_module, 0, "loaded at run time, it has a vector's entry");
    let (_workload, python) = {
        let mut command = Command::new(prefix.join("bin/python3.15"));
        command.args(["-c", RUN]);
        assert_found(command, "3.15")
    };
    assert_eq!((python.interpreter.tss_key, python.interpreter.tls_module), (KEY_TLS, 0));
}

/// What is said of a Python at rest.
fn refusal_of(python: &Path) -> Refusal {
    let mut child = Command::new(python)
        .args(["-c", "import sys; sys.stdout.write('\\n'); sys.stdout.flush(); sys.stdin.read()"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let found = find(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    found.map(|python| python.to_string()).unwrap_err()
}

#[test]
fn pythons_that_are_not_supported_are_refused_with_the_reason() {
    for python in builds_of("3.7") {
        let refusal = refusal_of(&python).to_string();
        assert!(refusal.starts_with("CPython 3.7 is not supported, only 3.8 to 3.15 are (/"), "{refusal}");
    }
    for python in builds_of("3.6") {
        let refusal = refusal_of(&python).to_string();
        assert!(refusal.starts_with("CPython before 3.8 is not supported (/"), "{refusal}");
    }
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/pythons/own-pypy/usr/bin/pypy3");
    let Some(pypy) = [PathBuf::from("/usr/bin/pypy3"), unpacked].into_iter().find(|file| file.exists()) else {
        skip("there is no PyPy here");
        return;
    };
    let refusal = refusal_of(&pypy).to_string();
    assert!(refusal.starts_with("PyPy is not supported, only CPython is (/"), "{refusal}");
}
