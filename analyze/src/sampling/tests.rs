//! The samplers against brute force, and against cases whose answer is known in closed form.

use std::collections::BTreeMap;

use ktape_format::definition::{Context, Frame, KernelName, Shape, Stream, Thread, frame_kind};
use ktape_format::event::{Kernel, Slice, timing};
use ktape_format::{Memory, Sink as _};
use proptest::prelude::*;

use super::jitter::Jitter;
use super::windows::Windows;
use super::work::{Interval, Key, Times};
use super::{By, Comparison, Options, Sampler, Schedule, Work, compare, lock_step, phases};
use crate::timeline::Timeline;
use crate::timeline::names::MOST_FRAMES;

const TOP: usize = 3;

/// Work from intervals (start, length, key, track); keys are in any order, so ranks are not those of `collect`.
fn work(times: &[(u32, u32, u32, u32)]) -> Work {
    let mut intervals: Vec<_> = times
        .iter()
        .map(|&(start, length, key, track)| Interval {
            start_ns: i64::from(start),
            end_ns: i64::from(start + length),
            key,
            track,
        })
        .collect();
    intervals.sort_by_key(|i| (i.track, i.start_ns, i.end_ns, i.key));
    let count = times.iter().map(|time| time.2 + 1).max().unwrap_or(0);
    let mut keys: Vec<Key> = (0..count).map(|key| Key { name: format!("k{key}"), ..Key::default() }).collect();
    for &(_, length, key, _) in times {
        keys[key as usize].calls += 1;
        keys[key as usize].exact_ns += u64::from(length);
    }
    let end_ns = intervals.iter().map(|i| i.end_ns).max().unwrap_or(0);
    Work {
        sampler: Sampler::Gpu,
        by: By::Kernel,
        keys,
        calls: times.iter().map(|time| (time.2, u64::from(time.1))).collect(),
        intervals,
        tracks: 1,
        track_of: Default::default(),
        span_ns: (0, end_ns),
        times: Times::default(),
        operators_only: false,
        calls_only: None,
    }
}

/// How often each key is sampled in a window with a phase, by looking.
fn look(work: &Work, windows: Windows, period_ns: u64, window: u64, phase: u64) -> Vec<u64> {
    let mut samples = vec![0; work.keys.len()];
    let opens = windows.origin_ns + (window * windows.length_ns) as i64;
    for instant in (phase..windows.length_ns).step_by(period_ns as usize).map(|instant| opens + instant as i64) {
        for interval in &work.intervals {
            samples[interval.key as usize] += u64::from(interval.start_ns <= instant && instant < interval.end_ns);
        }
    }
    samples
}

fn times() -> impl Strategy<Value = Vec<(u32, u32, u32, u32)>> {
    prop::collection::vec((0_u32..200, 1_u32..40, 0_u32..6, 0_u32..3), 1..40)
}

proptest! {
    #[test]
    fn every_phase_is_as_if_looked_at(times in times(), period_ns in 1_u64..50, length in 1_u64..300) {
        let work = work(&times);
        let span_ns = work.span_ns.1 as u64;
        let windows = Windows { origin_ns: 0, length_ns: length.min(span_ns), count: (span_ns / length).max(1) };
        let tally = phases::sweep(&work, windows, period_ns, TOP);
        let mut samples = vec![BTreeMap::<u64, u128>::new(); work.keys.len()];
        let (mut rank, mut top) = (vec![0_u128; work.keys.len()], vec![0.0; work.keys.len()]);
        for (window, phase) in (0..windows.count).flat_map(|window| (0..period_ns).map(move |phase| (window, phase))) {
            let seen = look(&work, windows, period_ns, window, phase);
            for (key, &count) in seen.iter().enumerate() {
                *samples[key].entry(count).or_default() += 1;
                if count > 0 {
                    let above = seen.iter().filter(|&&other| other > count).count();
                    let tied = seen.iter().filter(|&&other| other == count).count();
                    rank[key] += above as u128 + 1;
                    top[key] += TOP.saturating_sub(above).min(tied) as f64 / tied as f64;
                }
            }
        }
        for (key, tally) in tally.keys.iter().enumerate() {
            prop_assert_eq!(&tally.samples, &samples[key]);
            prop_assert_eq!(tally.rank_weight, rank[key]);
            prop_assert!((tally.top_weight - top[key]).abs() < 1e-6);
        }
    }

    #[test]
    fn over_all_phases_the_samples_are_the_exact_time_to_the_nanosecond(times in times(), period_ns in 1_u64..100_000) {
        let work = work(&times);
        let windows = Windows { origin_ns: 0, length_ns: work.span_ns.1 as u64, count: 1 };
        let tally = phases::sweep(&work, windows, period_ns, TOP);
        for (key, tally) in work.keys.iter().zip(&tally.keys) {
            // The sum over phases of (samples × period), divided by the number of phases, which is the period.
            prop_assert_eq!(tally.sample_weight(), u128::from(key.exact_ns));
        }
    }

    #[test]
    fn a_thread_is_in_the_slice_that_began_last(
        slices in prop::collection::vec((0_i64..60, 1_u64..30, 0_u32..4), 1..20),
    ) {
        let timeline = threads(&slices);
        let work = Work::collect(&timeline, Some(Sampler::Cpu), None).unwrap();
        let mut exact = BTreeMap::<String, u64>::new();
        for instant in 0..100 {
            let running = slices.iter().filter(|&&(start, length, _)| start <= instant && instant < start + length as i64);
            // Of those that begin together the shortest is the callee; equal ones have the order of the recording.
            let inner = running.enumerate().max_by_key(|&(row, &(start, length, _))| (start, u64::MAX - length, row));
            if let Some((_, &(_, _, function))) = inner {
                *exact.entry(format!("f{function}")).or_default() += 1;
            }
        }
        let got = work.keys.iter().filter(|key| key.exact_ns > 0).map(|key| (key.name.clone(), key.exact_ns));
        prop_assert_eq!(got.collect::<BTreeMap<_, _>>(), exact);
        prop_assert_eq!(work.keys.iter().map(|key| key.calls).sum::<u64>(), slices.len() as u64);
    }
}

/// One thread with Python slices (start, length, function).
fn threads(slices: &[(i64, u64, u32)]) -> Timeline {
    let mut memory = Memory::default();
    let Ok(thread) = memory.define(Thread { process: 0, tid: 1 });
    for &(start_ns, duration_ns, function) in slices {
        let Ok(name) = memory.string(&format!("f{function}"));
        let Ok(frame) = memory.define(Frame { kind: frame_kind::PYTHON, name, ..Frame::default() });
        let Ok(()) = memory.event(Slice { start_ns, duration_ns, thread, frame, ..Slice::default() });
    }
    Timeline::new(memory.definitions, memory.events)
}

/// Kernels (name, start, duration) on one stream.
fn kernels(kernels: impl IntoIterator<Item = (&'static str, i64, u64)>) -> Timeline {
    let mut memory = Memory::default();
    let Ok(context) = memory.define(Context { native: 1, ..Context::default() });
    let Ok(stream) = memory.define(Stream { context, native: 7, ..Stream::default() });
    for (name, start_ns, duration_ns) in kernels {
        let Ok(name) = memory.string(name);
        let Ok(kernel) = memory.define(KernelName { name, module: 0 });
        let Ok(shape) = memory.define(Shape { kernel, ..Shape::default() });
        let timing = timing::MEASURED;
        let Ok(()) = memory.event(Kernel { start_ns, duration_ns, stream, shape, timing, ..Kernel::default() });
    }
    Timeline::new(memory.definitions, memory.events)
}

fn only(timeline: &Timeline, options: &Options) -> Comparison {
    let mut comparisons = compare(timeline, options).unwrap();
    assert_eq!(comparisons.len(), 1);
    comparisons.remove(0)
}

const MS: i64 = 1_000_000;

#[test]
fn in_lock_step_a_profile_has_all_or_nothing() {
    // 2 ms of every 10 ms, a hundred times, at 100 Hz: a fifth of the phases see it 100 times, the others never.
    let timeline = kernels((0..100).map(|k| ("decode", k * 10 * MS + 3 * MS, 2_000_000)));
    let comparison = only(&timeline, &Options::default());
    let row = &comparison.rows[0];
    assert_eq!((row.calls, row.exact_ns, row.exact_rank), (100, 200_000_000, 1));
    assert_eq!((row.sampled_ns_mean, row.sampled_ns_p05, row.sampled_ns_p95), (200_000_000.0, 0, 1_000_000_000));
    assert_eq!((row.p_missed, row.p_call_seen, row.p_top10), (0.8, 0.2, 0.2));
    let [found] = &comparison.lock_steps[..] else { panic!("one lock-step: {:?}", comparison.lock_steps) };
    assert_eq!(found.loop_period_ns, Some(10_000_000));
    assert_eq!((found.sampled_ns_min, found.sampled_ns_max), (0, 1_000_000_000));
    // The trace begins with the kernel, so the first fifth of the phases hits it.
    let hits: Vec<usize> = (0..20).filter(|&i| found.sampled_ns_by_phase[i] > 0).collect();
    assert_eq!(hits, [0, 1, 2, 3]);
    let said = super::verdict::verdict(&comparison).pop().unwrap();
    assert!(
        said.starts_with("Lock-step: decode repeats every 10.000 ms and beats with the 10.000 ms of 100 Hz."),
        "{said}"
    );
    assert!(said.contains("0 % to 500 % of its true time: ████▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁ (100 times"), "{said}");
}

#[test]
fn out_of_step_a_profile_has_about_the_truth() {
    // 1 ms of every 7 ms: 7 and 10 share no factor, so the starts visit every millisecond of the period in turn.
    let timeline = kernels((0..100).map(|k| ("decode", k * 7 * MS, 1_000_000)));
    let comparison = only(&timeline, &Options::default());
    let row = &comparison.rows[0];
    assert_eq!((row.sampled_ns_mean, row.sampled_ns_p05, row.sampled_ns_p95), (1e8, 100_000_000, 100_000_000));
    assert_eq!((row.p_missed, row.p_call_seen), (0.0, 0.1));
    assert!(comparison.lock_steps.is_empty());
}

#[test]
fn a_call_longer_than_the_period_is_seen_once_or_twice() {
    let timeline = kernels([("long", 0, 13_000_000)]);
    let row = &only(&timeline, &Options::default()).rows[0];
    // 3 of 10 ms of phases hit it twice, the others once.
    assert_eq!((row.sampled_ns_mean, row.sampled_ns_p05, row.sampled_ns_p95), (13_000_000.0, 10_000_000, 20_000_000));
    assert_eq!((row.p_missed, row.p_call_seen, row.p_top10), (0.0, 1.0, 1.0));
    assert_eq!((row.rank_mean, row.rank_p05, row.rank_p95), (Some(1.0), Some(1), Some(1)));
}

#[test]
fn a_rare_kernel_in_the_exact_top_is_a_blind_spot() {
    // Never together: twelve kernels, 0.1 ms each, one call. All tie; each is hit by 1 % of the phases.
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    let timeline = kernels(names.into_iter().zip(0..).map(|(name, k)| (name, k * MS, 100_000)));
    let comparison = only(&timeline, &Options::default());
    assert_eq!(comparison.blind_spots, names[..10]);
    assert!(comparison.false_friends.is_empty());
    assert_eq!(comparison.rows[0].p_missed, 0.99);
    assert_eq!(comparison.rows[0].rank_p95, None);
}

#[test]
fn windows_are_profiles_of_a_part() {
    // Only the first of four seconds has work; 50 ms are left over.
    let timeline = kernels([("early", 0, 20_000_000), ("late", 4_000 * MS, 50_000_000)]);
    let windows_ns = vec![1_000_000_000, 60_000_000_000];
    let comparison = only(&timeline, &Options { windows_ns, ..Options::default() });
    assert_eq!((comparison.windows, comparison.window_ns, comparison.uncovered_ns), (4, 1_000_000_000, 50_000_000));
    let early = comparison.rows.iter().find(|row| row.key == "early").unwrap();
    assert_eq!((early.sampled_ns_mean, early.window_exact_ns_mean, early.p_missed), (5_000_000.0, 5_000_000.0, 0.75));
    let late = comparison.rows.iter().find(|row| row.key == "late").unwrap();
    assert_eq!((late.sampled_ns_mean, late.exact_ns, late.p_missed), (0.0, 50_000_000, 1.0));
    assert_eq!(comparison.notes.len(), 1, "a minute is longer than the trace: {:?}", comparison.notes);
}

#[test]
fn random_instants_are_right_on_average_and_cannot_be_in_step() {
    let timeline = kernels((0..100).map(|k| ("decode", k * 10 * MS, 2_000_000)));
    for jitter in [Jitter::Uniform, Jitter::Exponential] {
        let schedule = Schedule::Random { jitter, seed: 7, runs: 4000 };
        let comparison = only(&timeline, &Options { schedule, ..Options::default() });
        let row = &comparison.rows[0];
        // A hundred draws with 0.2 have a mean of 20 samples and a deviation of 4; of 4000 runs the mean deviates by 0.06.
        assert!((row.sampled_ns_mean / 1e7 - 20.0).abs() < 0.4, "{jitter:?}: {}", row.sampled_ns_mean);
        assert!((row.sampled_ns_p05 as f64 / 1e7 - 13.5).abs() < 1.6, "{jitter:?}: {}", row.sampled_ns_p05);
        assert!(row.p_missed < 0.001);
        let again = only(&timeline, &Options { schedule, ..Options::default() });
        assert_eq!(again.rows[0].sampled_ns_mean, row.sampled_ns_mean);
        let schedule = Schedule::Random { jitter, seed: 8, runs: 4000 };
        let other = only(&timeline, &Options { schedule, ..Options::default() });
        assert_ne!(other.rows[0].sampled_ns_mean, row.sampled_ns_mean);
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let timeline = kernels((0..500).map(|k| (["a", "b", "c"][k as usize % 3], k * 3 * MS, 700_000 + k as u64 * 777)));
    let run = |threads: usize, schedule| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let options = Options { hz: vec![99, 1000], windows_ns: vec![100_000_000], schedule, ..Options::default() };
        serde_json::to_string(&pool.install(|| compare(&timeline, &options)).unwrap()).unwrap()
    };
    for schedule in [Schedule::Fixed, Schedule::Random { jitter: Jitter::Uniform, seed: 3, runs: 300 }] {
        assert_eq!(run(1, schedule), run(4, schedule));
    }
}

#[test]
fn a_stack_is_the_path_to_the_innermost_slice() {
    // f0 calls f1, which outlives it by 1 ns.
    let timeline = threads(&[(0, 10, 0), (4, 7, 1)]);
    let work = Work::collect(&timeline, None, Some(By::Stack)).unwrap();
    let found: Vec<_> = work.keys.iter().map(|key| (key.name.as_str(), key.exact_ns)).collect();
    assert_eq!(found, [("f0;f1", 7), ("f0", 4)]);
}

#[test]
fn what_cannot_be_sampled_is_said() {
    let timeline = threads(&[(0, 10, 0)]);
    let gpu = Work::collect(&timeline, Some(Sampler::Gpu), None).unwrap_err();
    assert!(gpu.to_string().contains("--sampler cpu"), "{gpu}");
    let kernels_on_cpu = Work::collect(&timeline, None, Some(By::Kernel)).unwrap_err();
    assert!(kernels_on_cpu.to_string().contains("--by function"), "{kernels_on_cpu}");
    let options = Options { windows_ns: vec![1], ..Options::default() };
    let timeline = kernels([("a", 0, 1), ("b", 1 << 40, 1)]);
    assert!(compare(&timeline, &options).unwrap_err().to_string().contains("longer --windows"));
}

#[test]
fn random_starts_are_not_taken_for_lock_step() {
    // Two hundred kernels, short and long, with uniform gaps around the period: nothing repeats.
    let mut random = ktape_fixtures::random::Random::new(5);
    let mut times = Vec::new();
    for key in 0..200 {
        let mut start = 0;
        for _ in 0..100 {
            start += 500 + (random.next_u64() % 1000) as u32;
            times.push((start, 20 + key * 2, key, key));
        }
    }
    assert_eq!(lock_step::find(&work(&times), 1000), []);
}

#[test]
fn damaged_times_and_depths_are_survived() {
    let mut memory = Memory::default();
    for (start_ns, duration_ns) in [(i64::MIN, u64::MAX), (i64::MAX, 5), (7, 0)] {
        let Ok(()) = memory.event(Kernel { start_ns, duration_ns, timing: timing::MEASURED, ..Kernel::default() });
    }
    let timeline = Timeline::new(memory.definitions, memory.events);
    assert_eq!(only(&timeline, &Options::default()).calls, 3);
    let schedule = Schedule::Random { jitter: Jitter::Uniform, seed: 1, runs: 1 };
    assert!(
        compare(&timeline, &Options { schedule, ..Options::default() }).unwrap_err().to_string().contains("--runs")
    );

    let nested: Vec<_> = (0..20_000).map(|depth| (depth, 100_000, 0)).collect();
    let work = Work::collect(&threads(&nested), None, Some(By::Stack)).unwrap();
    assert_eq!(work.keys.len(), MOST_FRAMES);
    assert_eq!(work.exact_ns(), 119_999);
}

#[test]
fn times_that_together_cannot_be_true_are_refused() {
    let mut memory = Memory::default();
    for _ in 0..40 {
        let row = Kernel { start_ns: i64::MIN, duration_ns: u64::MAX, timing: timing::MEASURED, ..Kernel::default() };
        let Ok(()) = memory.event(row);
    }
    let timeline = Timeline::new(memory.definitions, memory.events);
    let refused = compare(&timeline, &Options { hz: vec![100_000_000], ..Options::default() }).unwrap_err();
    assert!(refused.to_string().contains("cannot be true"), "{refused}");
}

#[test]
fn device_work_without_times_leaves_the_threads_to_be_sampled() {
    let mut memory = Memory::default();
    let Ok(()) = memory.event(Kernel { timing: timing::ABSENT, ..Kernel::default() });
    let Ok(frame) = memory.define(Frame { kind: frame_kind::PYTHON, ..Frame::default() });
    let Ok(()) = memory.event(Slice { duration_ns: 10, frame, ..Slice::default() });
    let work = Work::collect(&Timeline::new(memory.definitions, memory.events), None, None).unwrap();
    assert_eq!((work.sampler, work.exact_ns()), (Sampler::Cpu, 10));
}
