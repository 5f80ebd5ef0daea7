//! `analyze compare` from the user's side: the worked example of a transformer service, and what the options do.

use std::path::{Path, PathBuf};
use std::process::Output;

use ktape_fixtures::service::{self, service};
use ktape_format::event::Loss;
use ktape_format::{Options, Sink as _, TapeWriter};
use serde_json::Value;

use crate::common;

fn tape(folder: &Path, requests: u32) -> PathBuf {
    let path = folder.join("service.ktape");
    let mut writer = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    service(&mut writer, requests, 1).unwrap();
    writer.finish().unwrap();
    path
}

fn compare(trace: &Path, arguments: &[&str]) -> Output {
    common::analyze(["compare".as_ref(), trace.as_os_str()].into_iter().chain(arguments.iter().map(AsRef::as_ref)))
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(trace: &Path, arguments: &[&str]) -> Value {
    let output = compare(trace, &[arguments, &["--json"]].concat());
    serde_json::from_str(&text(&output)).unwrap()
}

fn row<'a>(report: &'a Value, key: &str) -> &'a Value {
    report["rows"].as_array().unwrap().iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("no row {key}"))
}

#[test]
fn of_a_service_a_100_hz_sampler_sees_40_3_and_12_per_cent_of_the_calls() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), 40);
    let report = json(&tape, &["--hz", "100"]);
    let near = |value: &Value, expected: f64| (value.as_f64().unwrap() - expected).abs() < 1e-9;
    for (key, calls, call_ns, seen) in [
        (service::QKV, 40 * 32, service::QKV_NS, 0.12),
        (service::KV_COPY, 6, service::KV_COPY_NS, 0.40),
        (service::ACTIVATION, 3 * 40 * 32, service::ACTIVATION_NS, 0.03),
    ] {
        let row = row(&report, key);
        assert_eq!(row["calls"], calls);
        assert_eq!(row["exact_ns"], calls * call_ns);
        assert!(near(&row["p_call_seen"], seen), "{row}");
        assert_eq!(row["sampled_ns_mean"], row["exact_ns"].as_f64().unwrap(), "unbiased: {row}");
    }
    assert_eq!(row(&report, service::QKV)["exact_rank"], 1);
    assert_eq!((&report["lost"], &report["hz"], &report["windows"]), (&0.into(), &100.into(), &1.into()));
    let rare = row(&report, service::KV_COPY);
    let (low, high) = (rare["sampled_ns_p05"].as_u64().unwrap(), rare["sampled_ns_p95"].as_u64().unwrap());
    assert!(low < 24_000_000 && 24_000_000 < high, "six copies are a matter of luck: {low} … {high}");
}

#[test]
fn in_a_short_look_the_rare_copy_is_a_blind_spot() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), 40);
    let report = json(&tape, &["--windows", "1s", "--top", "5"]);
    let rare = row(&report, service::KV_COPY);
    assert!(rare["p_missed"].as_f64().unwrap() > 0.5, "{rare}");
    assert_eq!(report["blind_spots"], serde_json::json!([service::KV_COPY]));
    assert_eq!(json(&tape, &["--top", "5"])["blind_spots"], serde_json::json!([]), "the whole trace is long enough");
}

#[test]
fn one_comparison_a_frequency_and_window() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), 4);
    let reports = json(&tape, &["--hz", "49,99,1000", "--windows", "100ms,200ms"]);
    let of = |report: &Value| (report["hz"].as_u64().unwrap(), report["window_ns"].as_u64().unwrap());
    let expected: Vec<_> = [49, 99, 1000].into_iter().flat_map(|hz| [(hz, 100_000_000), (hz, 200_000_000)]).collect();
    assert_eq!(reports.as_array().unwrap().iter().map(of).collect::<Vec<_>>(), expected);
    assert_eq!(reports[2]["period_ns"], 10_101_010);
}

#[test]
fn the_cpu_sampler_finds_the_thread_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), 4);
    let report = json(&tape, &["--sampler", "cpu"]);
    assert_eq!(report["rows"][0]["key"], "synchronize (torch/cuda/__init__.py:985)");
    let stacks = json(&tape, &["--by", "stack"]);
    let expected = "serve (service/server.py:31);handle_request (service/server.py:58);forward (service/model.py:204);\
                    forward (service/layer.py:96);forward (service/attention.py:41)";
    assert_eq!(row(&stacks, expected)["exact_ns"], 4 * 32 * (service::QKV_NS + service::ACTIVATION_NS));
}

#[test]
fn the_text_says_what_it_means_and_a_picture_can_be_had() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), 40);
    let svg = folder.path().join("compare.svg");
    let output = text(&compare(&tape, &["--svg", svg.to_str().unwrap()]));
    for expected in ["timed on the device", "attention_qkv_kernel", "Told: ", "Misled: ", "12 %", "40 %", "3.0 %"] {
        assert!(output.contains(expected), "{expected}:\n{output}");
    }
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && svg.contains("attention_qkv_kernel"));
    let jittered = text(&compare(&tape, &["--jitter", "--runs", "50", "--seed", "3"]));
    assert!(jittered.contains("50 random runs, seed 3"), "{jittered}");
}

#[test]
fn a_wrong_command_line_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), 1);
    for (arguments, expected) in [
        (&["--hz", "0"][..], "--hz"),
        (&["--windows", "0s"], "longer than 0"),
        (&["--sampler", "cpu", "--by", "kernel"], "--by function"),
        (&["--windows", "1ns"], "longer --windows"),
        (&["--seed", "1"], "--jitter"),
    ] {
        let output = compare(&tape, arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(expected), "{arguments:?}: {error}");
    }
}

/// An independent simulation of 20 phases (`shared/reference/idle-*.json`) over the same functions of the one thread.
#[test]
fn on_a_real_trace_the_cpu_sampler_agrees_with_an_independent_simulation() {
    let Some(shared) = common::shared() else { return };
    let reference = std::fs::read_to_string(shared.join("reference/idle-eager_b200.json")).unwrap();
    let reference: Value = serde_json::from_str(&reference).unwrap();
    let sampling = &reference["sampling_100hz"];
    let trace = shared.join("traces/AMD-AGI+TraceLens/tests/traces/b200/eager_trace.json.gz");
    let report = json(&trace, &["--sampler", "cpu"]);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len() as u64, sampling["distinct_functions"].as_u64().unwrap());
    let near = |value: &Value, expected: &Value, off: f64| {
        let (value, expected) = (value.as_f64().unwrap(), expected.as_f64().unwrap());
        assert!((value - expected).abs() <= off, "{value} is not {expected}");
    };
    // It drops the last, incomplete period: 8 samples instead of 8.7.
    near(&report["share_error_mean"], &sampling["mean_total_variation_distance"], 0.06);
    near(&report["unseen_mean"], &sampling["mean_fraction_functions_never_seen"], 0.002);
    for (row, exact) in rows.iter().zip(sampling["exact_top5"].as_array().unwrap()) {
        // Its figure is rounded to 100 ns, and its names keep the addresses that ours leave out.
        near(&Value::from(row["exact_ns"].as_f64().unwrap() / 1e6), &exact[1], 0.2);
    }
}

#[test]
fn on_a_real_trace_all_device_work_is_sampled() {
    let Some(shared) = common::shared() else { return };
    let reference = std::fs::read_to_string(shared.join("reference/exact-owlv2_h100.json")).unwrap();
    let reference: Value = serde_json::from_str(&reference).unwrap();
    let trace =
        shared.join("traces/AMD-AGI+TraceLens/tests/traces/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz");
    let report = json(&trace, &[]);
    assert_eq!(report["calls"], reference["n_gpu_ops"]);
    assert_eq!(report["exact_ns"], reference["devices"]["0"]["sum_dur_ns"]);
    for row in report["rows"].as_array().unwrap() {
        assert_eq!(row["sampled_ns_mean"].as_f64(), row["exact_ns"].as_f64(), "unbiased: {row}");
    }
}

/// A damaged tape was said to have no events, and not why.
#[test]
fn what_was_lost_is_said_before_there_is_nothing_to_compare() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lost.ktape");
    let mut writer = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    writer.event(Loss { count: 42, ..Loss::default() }).unwrap();
    writer.finish().unwrap();
    let refused = compare(&path, &[]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let lost = said.find("42 events were lost").expect("says what was lost");
    assert!(lost < said.find("the trace has no events").expect("says why there is no comparison"), "{said}");
}
