//! The GPUs' own counters on the tape, against the record of the stand-in for NVML.

use std::collections::BTreeMap;
use std::path::Path;

use ktape_format::definition::{CounterName, Device};
use ktape_format::{Table as _, Tape, Wanted};
use serde_json::Value;

use crate::processes::{Scene, skip};

/// Which counter an answer becomes, and how many thousandths of that one is.
const QUESTIONS: [(&str, &str, f64); 9] = [
    ("gpu", "GPU utilisation", 1000.0),
    ("memory", "GPU memory utilisation", 1000.0),
    ("used", "GPU memory used", 1_048_576_000.0),
    ("power", "GPU power", 1.0),
    ("sm-clock", "GPU SM clock", 1000.0),
    ("memory-clock", "GPU memory clock", 1000.0),
    ("temperature", "GPU temperature", 1000.0),
    ("pcie-sent", "PCIe sent", 1_024_000.0),
    ("pcie-received", "PCIe received", 1_024_000.0),
];

type Values = BTreeMap<(u32, String), Vec<f64>>;

/// What the stand-in answered.
fn truth(path: &Path) -> Values {
    let mut values = Values::new();
    for line in std::fs::read_to_string(path).expect("the stand-in's record").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let Some((_, name, factor)) = QUESTIONS.iter().find(|(question, ..)| *question == fields[1]) else { continue };
        let number: f64 = fields[2].parse().expect("a number");
        let device = fields[0].parse().expect("a device");
        values.entry((device, (*name).to_owned())).or_default().push(number * factor);
    }
    values
}

/// What is on the tape, without the rates of NVLink, which are made of two answers.
fn recorded(path: &Path) -> (Values, usize) {
    let contents = Tape::open(path).and_then(|tape| tape.read(&Wanted::default())).expect("a tape");
    let definitions = &contents.definitions;
    let (mut values, mut rates) = (Values::new(), 0);
    for row in contents.events.counter.rows() {
        let counter: CounterName = definitions.get(row.counter).expect("a counter");
        let Some(device) = definitions.get::<Device>(counter.device) else { continue };
        assert_eq!(
            definitions.string(device.uuid),
            format!("GPU-6b746170-6520-7369-6d63-7564612030{:x}", 0x30 + device.index)
        );
        let name = definitions.string(counter.name).to_owned();
        if name.starts_with("NVLink") {
            rates += 1;
        } else {
            values.entry((device.index, name)).or_default().push((row.value * 1000.0).round());
        }
    }
    (values, rates)
}

#[test]
fn every_answer_of_every_gpu_is_on_the_tape() {
    let Some(scene) = Scene::new("GPU counters") else { return };
    if !scene.has_library("libnvidia-ml.so.1") {
        skip("GPU counters: no stand-in for NVML: it takes a C compiler");
        return;
    }
    let (tape, told) = (scene.path("run.ktape"), scene.path("told"));
    let mut run = scene.capture(&["run", "--json", "--gpu-counters", "-o", &tape, "--", "sleep", "3.5"]);
    let run = run.env("SIMNVML_TRUTH", &told).env("SIMCUDA_DEVICES", "3").env("SIMNVML_WITHOUT", "temperature");
    let output = run.output().expect("capture starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("a summary");
    let (expected, (found, rates)) = (truth(Path::new(&told)), recorded(Path::new(&tape)));
    // The last round may have been asked and not taken; it is counted neither way, as the recording was over.
    for (key, expected) in &expected {
        let found = found.get(key).map_or(&[][..], Vec::as_slice);
        let (all, taken) = (expected.len(), found.len());
        assert!(taken + 1 >= all && *found == expected[..taken], "{key:?}: {taken} of {all}");
    }
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    assert!(!expected.contains_key(&(0, "GPU temperature".to_owned())));
    assert!(rates >= 3 * 2 * 2, "{rates} rates of NVLink");
    let values: usize = found.values().map(Vec::len).sum();
    assert_eq!(summary["gpu_counters"]["gpus"], 3);
    assert_eq!(summary["gpu_counters"]["written"], values + rates);
    assert_eq!(summary["gpu_counters"]["lost"], 0);
    // Asking for traffic takes 120 ms of each second here: 3 GPUs, 20 ms each way.
    assert!(found[&(2, "GPU power".to_owned())].len() >= 20);
}

#[test]
fn without_nvml_counters_are_refused_in_one_line() {
    let Some(scene) = Scene::new("GPU counters without NVML") else { return };
    let output = scene
        .capture(&["run", "--gpu-counters", "-o", &scene.path("run.ktape"), "--", "true"])
        .env("LD_LIBRARY_PATH", "")
        .output()
        .expect("capture starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("NVML") && said.contains("libnvidia-ml.so.1"), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
}
