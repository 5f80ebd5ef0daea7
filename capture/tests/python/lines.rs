//! The line of every instruction of the standard library, against Python's own account.

use std::process::Command;

use ktape_capture::python::code::Lines;
use serde::Deserialize;

use super::interpreters::{DIRECTORY, builds_of, row_of};

#[derive(Deserialize)]
struct Shown {
    first: i32,
    table: String,
    lines: Vec<(i32, i32, Option<i32>)>,
}

fn every_line_is_what_python_says(version: &str) {
    for python in builds_of(version) {
        let output = Command::new(&python).arg("lines.py").current_dir(DIRECTORY).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut instructions = 0;
        for shown in output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let shown: Shown = serde_json::from_slice(shown).unwrap();
            let digits = |at: usize| u8::from_str_radix(&shown.table[at..at + 2], 16).unwrap();
            let table: Vec<u8> = (0..shown.table.len()).step_by(2).map(digits).collect();
            let lines = Lines::decode(row_of(version).0, shown.first, &table);
            for (begin, end, line) in shown.lines {
                for instruction in (begin..end).step_by(2) {
                    assert_eq!(lines.at(instruction), line, "{instruction} of {} with {table:?}", shown.first);
                    instructions += 1;
                }
            }
        }
        assert!(instructions > 100_000, "only {instructions} instructions");
    }
}

#[test]
fn every_line_of_3_9_is_what_python_says() {
    every_line_is_what_python_says("3.9");
}

#[test]
fn every_line_of_3_10_is_what_python_says() {
    every_line_is_what_python_says("3.10");
}

#[test]
fn every_line_of_3_11_is_what_python_says() {
    every_line_is_what_python_says("3.11");
}

#[test]
fn every_line_of_3_12_is_what_python_says() {
    every_line_is_what_python_says("3.12");
}

#[test]
fn every_line_of_3_13_is_what_python_says() {
    every_line_is_what_python_says("3.13");
}

#[test]
fn every_line_of_3_14_is_what_python_says() {
    every_line_is_what_python_says("3.14");
}

#[test]
fn every_line_of_3_15_is_what_python_says() {
    every_line_is_what_python_says("3.15");
}
