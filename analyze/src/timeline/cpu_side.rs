//! What threads ran, by the samples that a real profiler took of them: the answer of `analyze info` where a tape has any.
//!
//! A sample stands for a stretch of time, its weight. Where the sampler's period counts something else, cycles for example, it
//! has none, and shares are those of numbers of samples.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ktape_format::Table as _;
use ktape_format::definition::{Process, Thread, property};
use ktape_format::table::DefinitionKind;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::Timeline;
use super::names::{FrameName, MOST_FRAMES};

/// The CPU samples of a trace in figures. The field names are the keys of `cpu` in `analyze info --json`.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct CpuSide {
    /// How many there are.
    pub samples: u64,
    /// How many of them have no stack.
    pub without_stack: u64,
    /// The time that they stand for; 0 if that is not known.
    pub time_ns: u64,
    /// The functions that were found running or calling, those that ran themselves in most samples first.
    pub functions: Vec<FunctionSamples>,
    /// The threads, most samples first.
    pub threads: Vec<ThreadSamples>,
}

/// One function's samples.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct FunctionSamples {
    /// The function, with its file.
    pub function: String,
    /// Samples in which it was the innermost.
    pub own: u64,
    /// Samples in which it was on the stack.
    pub total: u64,
}

/// One thread's samples.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct ThreadSamples {
    /// Its process's number.
    pub pid: Option<i64>,
    /// Its number.
    pub tid: i64,
    /// Its name; empty if not known.
    pub name: String,
    /// Its samples.
    pub samples: u64,
    /// The time that they stand for.
    pub time_ns: u64,
}

impl Timeline {
    /// The CPU samples in figures; `None` if there are none.
    pub fn cpu_side(&self) -> Option<CpuSide> {
        let samples = &self.events.cpu_sample;
        if samples.is_empty() {
            return None;
        }
        let mut cpu = CpuSide { samples: samples.len() as u64, ..CpuSide::default() };
        let mut by_thread = BTreeMap::<u32, (u64, u64)>::new();
        let mut by_stack = FxHashMap::<u32, u64>::default();
        for row in samples.rows() {
            cpu.time_ns = cpu.time_ns.saturating_add(row.weight_ns);
            let (count, time_ns) = by_thread.entry(row.thread).or_default();
            *count += 1;
            *time_ns = time_ns.saturating_add(row.weight_ns);
            *by_stack.entry(row.stack).or_default() += 1;
        }
        cpu.without_stack = by_stack.remove(&0).unwrap_or(0);
        cpu.functions = self.functions_of(&by_stack);
        cpu.threads =
            by_thread.into_iter().map(|(id, (samples, time_ns))| self.samples_of(id, samples, time_ns)).collect();
        cpu.threads.sort_by_key(|thread| Reverse(thread.samples));
        Some(cpu)
    }

    fn samples_of(&self, id: u32, samples: u64, time_ns: u64) -> ThreadSamples {
        let thread = self.definitions.get::<Thread>(id).unwrap_or_default();
        ThreadSamples {
            pid: self.definitions.get::<Process>(thread.process).map(|process| process.pid),
            tid: thread.tid,
            name: self
                .definitions
                .property(DefinitionKind::Thread as u16, id, property::NAME)
                .unwrap_or_default()
                .to_owned(),
            samples,
            time_ns,
        }
    }

    fn functions_of(&self, by_stack: &FxHashMap<u32, u64>) -> Vec<FunctionSamples> {
        let mut by_frame = FxHashMap::<u32, (u64, u64)>::default();
        let mut met = FxHashSet::default();
        for (&stack, &samples) in by_stack {
            met.clear();
            for (depth, (_, node)) in self.definitions.stack_nodes(stack).take(MOST_FRAMES).enumerate() {
                let (own, total) = by_frame.entry(node.frame).or_default();
                *own += if depth == 0 { samples } else { 0 };
                // One that calls itself was there once.
                *total += if met.insert(node.frame) { samples } else { 0 };
            }
        }
        let mut functions = BTreeMap::<String, FunctionSamples>::new();
        for (frame, (own, total)) in by_frame {
            let function = FrameName::of_frame(&self.definitions, frame).full();
            let entry = functions.entry(function.clone()).or_insert(FunctionSamples { function, ..Default::default() });
            entry.own += own;
            entry.total += total;
        }
        let mut functions: Vec<FunctionSamples> = functions.into_values().collect();
        functions.sort_by_key(|function| Reverse((function.own, function.total)));
        functions
    }
}

#[cfg(test)]
mod tests {
    use ktape_format::definition::{Frame, Stack, frame_kind};
    use ktape_format::event::CpuSample;
    use ktape_format::{Memory, Sink as _};

    use super::*;

    #[test]
    fn a_function_that_calls_itself_is_on_a_stack_once() {
        let mut memory = Memory::default();
        let Ok(process) = memory.define(Process { pid: 7, ..Process::default() });
        let Ok(thread) = memory.define(Thread { process, tid: 8 });
        let mut frame = |name: &str| {
            let Ok(name) = memory.string(name);
            let Ok(frame) = memory.define(Frame { kind: frame_kind::PYTHON, name, ..Frame::default() });
            frame
        };
        let (fib, main) = (frame("fib"), frame("main"));
        let mut stack = 0;
        let mut stacks = Vec::new();
        for frame in [main, fib, fib] {
            let Ok(id) = memory.define(Stack { parent: stack, frame, line: 1 });
            stack = id;
            stacks.push(id);
        }
        for (at, stack) in [stacks[2], stacks[2], stacks[0], 0].into_iter().enumerate() {
            let row = CpuSample { start_ns: at as i64, weight_ns: 10, thread, stack, cpu: 0 };
            let Ok(()) = memory.event(row);
        }
        let cpu = Timeline::new(memory.definitions, memory.events).cpu_side().expect("samples");
        assert_eq!((cpu.samples, cpu.without_stack, cpu.time_ns), (4, 1, 40));
        let functions: Vec<_> = cpu.functions.iter().map(|row| (&*row.function, row.own, row.total)).collect();
        assert_eq!(functions, [("fib", 2, 2), ("main", 1, 3)]);
        assert_eq!((cpu.threads[0].pid, cpu.threads[0].tid, cpu.threads[0].samples), (Some(7), 8, 4));
    }
}
