//! How long the comparison takes, by the number of calls: it must grow like n log n.
//!
//! `cargo bench -p ktape-analyze --bench compare` prints a line a size.

use std::io::Write as _;
use std::time::Instant;

use ktape_analyze::sampling::{By, Options, Sampler, Schedule, compare, jitter::Jitter};
use ktape_analyze::timeline::Timeline;
use ktape_format::Memory;

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for requests in [100, 400, 1600] {
        let mut memory = Memory::default();
        let Ok(()) = ktape_fixtures::service::service(&mut memory, requests, 1);
        let calls = memory.events.len();
        let timeline = Timeline::new(memory.definitions, memory.events);
        let random = Schedule::Random { jitter: Jitter::Uniform, seed: 1, runs: 100 };
        for (what, sampler, by, schedule) in [
            ("gpu, all phases", Sampler::Gpu, By::Kernel, Schedule::Fixed),
            ("cpu stacks, all phases", Sampler::Cpu, By::Stack, Schedule::Fixed),
            ("gpu, 100 random runs", Sampler::Gpu, By::Kernel, random),
        ] {
            let options = Options { sampler: Some(sampler), by: Some(by), schedule, ..Options::default() };
            let began = Instant::now();
            compare(&timeline, &options).expect("the fixture has both");
            let ms = began.elapsed().as_secs_f64() * 1e3;
            writeln!(out, "{calls:>8} events  {ms:>8.1} ms  {:>6.0} ns an event  {what}", ms * 1e6 / calls as f64)?;
        }
    }
    Ok(())
}
