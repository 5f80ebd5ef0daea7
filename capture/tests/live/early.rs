//! The first calls of a process have their stacks, however late the recorder gets to look at the process: here it stands still from before
//! the process begins until it has ended. What it sees then must be whole all the same.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::EXACT;
use crate::common::WHILE_STOPPED;
use crate::processes::{LAUNCHES, Scene, every_python};

/// Records the command, and demands that each call and stack of its one process that calls is on the tape.
fn assert_whole(scene: &Scene, of: &str, run: &mut Command) {
    let output = run.output().expect("capture starts");
    assert!(output.status.success(), "{of}: {output:?}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
    assert_eq!(summary["gaps"]["before_interpreter"], 0, "{of}: {summary}");
    scene.compare("run.ktape", EXACT);
}

#[test]
fn a_child_has_its_stacks_while_the_recorder_stands_still() {
    for (version, python) in every_python() {
        let Some(scene) = Scene::new("a recorder that stands still") else { return };
        let mut run = scene.capture(&["run", "--json", "-o", &scene.path("run.ktape"), "--"]);
        assert_whole(&scene, version, run.args([python, "-c", WHILE_STOPPED, LAUNCHES, "50"]));
    }
}

#[test]
fn a_script_s_first_python_has_its_stacks_while_the_recorder_stands_still() {
    for (version, python) in every_python() {
        let Some(scene) = Scene::new("a script's Python") else { return };
        // What a shell finds is known before the script begins.
        let file = Path::new(python).canonicalize().expect("it is there");
        symlink(&file, scene.path("python3")).expect("a link");
        let path = format!("{}:/usr/bin:/bin", scene.path(""));
        let script = "kill -STOP $PPID; \"$@\"; code=$?; kill -CONT $PPID; exit $code";
        let mut run = scene.capture(&["run", "--json", "-o", &scene.path("run.ktape"), "--", "/bin/sh", "-c", script]);
        run.env("PATH", path).args(["sh", python, "-c", LAUNCHES, "50"]);
        assert_whole(&scene, version, &mut run);
    }
}
