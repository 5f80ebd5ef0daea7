//! Files that are given to an importer by mistake: what they are, and what to give instead.

/// What a text is that cannot be JSON; `None` for one that may be.
pub(super) fn other_than_json(text: &[u8]) -> Option<&'static str> {
    Some(match text.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => "is empty; the profiler had not written it yet, or its disk was full",
        Some(b'{' | b'[') => return None,
        _ if text.starts_with(&ktape_format::header::MAGIC) => "a tape already; `analyze info` says what is on it",
        _ if text.starts_with(b"SQLite format 3\0") => {
            "an SQLite database, as Nsight Systems exports it, but packed or through a pipe; unpack it into a file and \
             name that"
        }
        // PROTO and the protocol's number, 2 or later.
        _ if matches!(text, [0x80, 2..=5, ..]) => {
            "a Python pickle, as `torch.cuda.memory._dump_snapshot(…)` writes it: a memory snapshot, which cannot be \
             read yet; export the trace itself with `prof.export_chrome_trace(…)`"
        }
        _ if text.starts_with(b"PK\x03\x04") => "a ZIP archive; unpack it and name the trace in it",
        _ => {
            "not JSON and nothing else that is known; expected a trace of PyTorch's profiler, as \
             `prof.export_chrome_trace(…)` writes it, or an SQLite export of Nsight Systems"
        }
    })
}

/// What an element of an array is that is an array itself: a row of PyTorch's memory timeline.
pub(super) const MEMORY_TIMELINE: &str = "a memory timeline (`prof.export_memory_timeline(…)`), which has allocations but no kernels and no stacks; export \
     the trace itself with `prof.export_chrome_trace(…)`";

/// What a text is that has rocprofv3's own key.
pub(super) const ROCPROFV3: &str = "rocprofv3's own JSON (`rocprofiler-sdk-tool`), which is no Chrome trace and cannot be read yet; record with \
     PyTorch's profiler and `prof.export_chrome_trace(…)`, or with rocprof's `--hip-trace`, whose `results.json` can be";
