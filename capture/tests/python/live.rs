//! Stacks of a running process, read while it runs, against what its threads told.

use std::time::{Duration, Instant};

use ktape_capture::python::find::{Refusal, find, threads};
use ktape_capture::python::frames::{Codes, Named, walk};
use ktape_capture::python::memory::ProcessMemory;
use ktape_ebpf::python::{End, Interpreter, KEY_BY_LIST, Layout, MAX_FRAMES, Memory, thread_state};

use super::interpreters::{Stopped, Told, Workload, builds_of, row_of};

/// The stack of the thread with this thread pointer, and how the walk ended: all the way that a recorded one goes.
pub(super) fn stack<M: Memory>(memory: &M, interpreter: &Interpreter, thread_pointer: u64) -> (Vec<Told>, u32) {
    let Some(state) = thread_state(memory, interpreter, thread_pointer) else {
        return (Vec::new(), End::Unreadable as u32);
    };
    let walk = walk(memory, &interpreter.layout, state);
    let frames = &walk.frames[..walk.count as usize];
    let mut codes = Codes::default();
    codes.read(memory, &interpreter.layout, frames);
    let told = frames.iter().filter_map(|frame| match codes.name(frame) {
        Named::Shown(frame) => Some((frame.code.name.to_string(), frame.code.file.to_string(), frame.line)),
        Named::Hidden => None,
        Named::Unknown => Some(("unknown".to_owned(), String::new(), None)),
    });
    (told.collect(), walk.end)
}

/// What must come out of a thread that told this.
pub(super) fn kept(told: &[Told]) -> (Vec<Told>, u32) {
    let end = if told.len() > MAX_FRAMES { End::Cut } else { End::Outermost };
    (told.iter().take(MAX_FRAMES).cloned().collect(), end as u32)
}

/// Waits until the thread has the stack that it told: between telling and stopping it is still elsewhere.
pub(super) fn assert_stopped<M: Memory>(memory: &M, interpreter: &Interpreter, stopped: &Stopped) {
    let expected = kept(&stopped.stack);
    let begun = Instant::now();
    let mut found = stack(memory, interpreter, stopped.pthread);
    while found != expected && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(5));
        found = stack(memory, interpreter, stopped.pthread);
    }
    assert_eq!(found, expected, "{} in 3.{}", stopped.case, interpreter.layout.version & 0xff);
}

fn every_stack_is_what_python_says(version: &str) {
    for python in builds_of(version) {
        let mut workload = Workload::start(&python, &["all"]);
        let interpreter = find(workload.pid()).unwrap().interpreter;
        let Layout { version: found, free_threaded, .. } = interpreter.layout;
        assert_eq!((found, free_threaded != 0), row_of(version));
        assert_ne!(interpreter.tss_key, KEY_BY_LIST);
        let memory = ProcessMemory::open(workload.pid()).unwrap();
        for stopped in &workload.stopped {
            assert_stopped(&memory, &interpreter, stopped);
        }
        workload.hold_the_lock();
        assert_stopped(&memory, &interpreter, workload.stopped.last().unwrap());
        let listed = threads(&memory, &interpreter);
        for stopped in &workload.stopped {
            assert!(listed.iter().any(|thread| thread.pthread == stopped.pthread), "{} is not listed", stopped.case);
            assert_eq!(stack(&memory, &interpreter, stopped.pthread), kept(&stopped.stack), "{}", stopped.case);
        }
    }
}

#[test]
fn every_stack_of_3_8_is_what_python_says() {
    every_stack_is_what_python_says("3.8");
}

#[test]
fn every_stack_of_3_9_is_what_python_says() {
    every_stack_is_what_python_says("3.9");
}

#[test]
fn every_stack_of_3_10_is_what_python_says() {
    every_stack_is_what_python_says("3.10");
}

#[test]
fn every_stack_of_3_11_is_what_python_says() {
    every_stack_is_what_python_says("3.11");
}

#[test]
fn every_stack_of_3_12_is_what_python_says() {
    every_stack_is_what_python_says("3.12");
}

#[test]
fn every_stack_of_3_13_is_what_python_says() {
    every_stack_is_what_python_says("3.13");
}

#[test]
fn every_stack_of_3_14_is_what_python_says() {
    every_stack_is_what_python_says("3.14");
}

#[test]
fn every_stack_of_3_15_is_what_python_says() {
    every_stack_is_what_python_says("3.15");
}

#[test]
fn every_stack_of_3_13t_is_what_python_says() {
    every_stack_is_what_python_says("3.13t");
}

#[test]
fn every_stack_of_3_11d_is_what_python_says() {
    every_stack_is_what_python_says("3.11d");
}

#[test]
fn every_stack_of_3_13d_is_what_python_says() {
    every_stack_is_what_python_says("3.13d");
}

#[test]
fn every_stack_of_3_14d_is_what_python_says() {
    every_stack_is_what_python_says("3.14d");
}

#[test]
fn a_version_without_a_layout_is_refused() {
    for python in builds_of("3.7") {
        let mut child = std::process::Command::new(python)
            .args(["-c", "print(flush=True); input()"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let refusal = find(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(refusal, Err(Refusal::Version(0x0307, _))), "{refusal:?}");
    }
}
