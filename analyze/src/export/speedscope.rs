//! Speedscope profiles (<https://www.speedscope.app/file-format-schema.json>).
//!
//! Each stack of the tree is one sample, its weight exact: the profile is "sampled" by its type only. Where the tree
//! has streams or ranks at its root each becomes a profile of its own, between which speedscope switches.

use std::io::{self, Write};

use serde::Serialize;

use super::flamegraph::{By, Label, Tree};
use crate::timeline::weights::Value;

#[derive(Serialize)]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: String,
    name: &'a str,
    shared: Shared<'a>,
    profiles: Vec<Profile<'a>>,
    #[serde(rename = "activeProfileIndex")]
    active_profile: usize,
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: Vec<Frame<'a>>,
}

#[derive(Serialize)]
struct Frame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    file: &'a str,
    #[serde(skip_serializing_if = "is_unknown")]
    line: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile<'a> {
    r#type: &'static str,
    name: &'a str,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Vec<Vec<u32>>,
    weights: Vec<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_unknown(line: &u32) -> bool {
    *line == 0
}

/// Writes a tree of `value`, shaped by `by`, as a speedscope file of that name.
pub fn write(tree: &Tree, value: Value, by: By, name: &str, out: &mut impl Write) -> io::Result<()> {
    let frames: Vec<Frame> = tree.labels().iter().map(frame).collect();
    let unit = match value {
        Value::Gpu | Value::Api | Value::Sync | Value::Copies | Value::Cpu => "nanoseconds",
        Value::Bytes => "bytes",
        Value::Launches | Value::Samples => "none",
    };
    let profile = |name| Profile {
        r#type: "sampled",
        name,
        unit,
        start_value: 0,
        end_value: 0,
        samples: Vec::new(),
        weights: Vec::new(),
    };
    let split = matches!(by, By::Stream | By::Rank);
    let roots: Vec<u32> = if split { tree.roots().collect() } else { Vec::new() };
    let mut profiles: Vec<Profile> = match split {
        true => roots.iter().map(|&root| profile(&tree.labels()[root as usize].text)).collect(),
        false => vec![profile(name)],
    };
    let mut at = 0;
    tree.walk(0, |path, weight| {
        // The walk goes through the roots in their order.
        at += usize::from(split && path[0] != roots[at]);
        let profile = &mut profiles[at];
        profile.samples.push(path[usize::from(split)..].to_vec());
        profile.weights.push(weight);
        profile.end_value += weight;
        Ok::<(), io::Error>(())
    })?;
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: format!("ktape {}", env!("CARGO_PKG_VERSION")),
        name,
        shared: Shared { frames },
        profiles,
        active_profile: 0,
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")
}

fn frame(label: &Label) -> Frame<'_> {
    // An operator's or kernel's text says it all; a Python frame's file and line have fields of their own.
    let name = if label.file.is_empty() { &label.text } else { &label.name };
    Frame { name, file: &label.file, line: label.line }
}
