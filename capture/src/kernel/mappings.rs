//! What the machine's processes map to execute, as they do: the kernel tells it to whoever records performance events.
//!
//! That covers every process in every container, whoever links it, and costs those that map something no probe. It is told in a buffer
//! for each processor, which is looked at whenever the recorder does; what one had no room for is known to be missing.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, Sampler};

/// Bytes of each processor's buffer: some thousand mappings.
const BUFFER_BYTES: usize = 1 << 19;

/// Files that were mapped to be executed, on all processors.
pub struct Mappings {
    processors: BTreeMap<u32, Sampler>,
}

/// What was mapped since it was asked last.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// Processes that mapped a file that was asked for.
    pub pids: Vec<u32>,
    /// Whether something is missing.
    pub is_incomplete: bool,
}

impl Mappings {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// If the kernel does not let us: `CAP_PERFMON` is needed.
    pub fn open() -> io::Result<Mappings> {
        let mut mappings = Mappings { processors: BTreeMap::new() };
        mappings.follow_processors()?;
        Ok(mappings)
    }

    /// Listens on processors that came online too. True if there were any: what was mapped there before was not heard.
    pub fn follow_processors(&mut self) -> io::Result<bool> {
        let online = aya::util::online_cpus().map_err(|(_, error)| error)?;
        self.processors.retain(|cpu, _| online.contains(cpu));
        let mut came = false;
        for cpu in online {
            if self.processors.contains_key(&cpu) {
                continue;
            }
            let mut builder = Builder::new(Software::DUMMY);
            builder.any_pid().one_cpu(cpu as usize).mmap(true).mmap2(true).enabled(true);
            // Nobody is woken for it.
            let sampler = builder.wakeup_watermark(BUFFER_BYTES).build()?.sampled(BUFFER_BYTES)?;
            self.processors.insert(cpu, sampler);
            came = true;
        }
        Ok(came)
    }

    /// The processes that have mapped a file that `is_wanted` by its path: what other processes do costs little more than reading it.
    pub fn take(&mut self, is_wanted: impl Fn(&Path) -> bool) -> Mapped {
        let mut mapped = Mapped::default();
        for sampler in self.processors.values_mut() {
            while let Some(record) = sampler.next_record() {
                match record.parse_record() {
                    Ok(Record::Mmap2(mapping)) => {
                        if is_wanted(Path::new(std::ffi::OsStr::from_bytes(&mapping.filename)))
                            && !mapped.pids.contains(&mapping.pid)
                        {
                            mapped.pids.push(mapping.pid);
                        }
                    }
                    Ok(Record::Lost(_)) | Err(_) => mapped.is_incomplete = true,
                    Ok(_) => {}
                }
            }
        }
        mapped
    }
}
