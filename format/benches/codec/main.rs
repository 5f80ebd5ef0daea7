//! What the codec costs: bytes, and time on one core, of an event.
//!
//! `cargo bench -p ktape-format --bench codec` measures five million synthetic events. Tapes named behind `--` are
//! measured too, each for the launches, copies, synchronisations and allocations on it and what these refer to
//! (`analyze import trace.json.gz -o trace.ktape` makes one); `--rows 16384` cuts other blocks than the writer does,
//! `--events 500000` makes a shorter synthetic trace, `--rounds 50` repeats more often.
//!
//! An event is a launch with its kernel, or a copy, a synchronisation, an allocation or a free. Times are the best of
//! several; beside them stand limits of this machine measured in the same run.

mod blocks;
mod eager_decode;

use std::hint::black_box;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use blocks::{Blocks, count, feed};
use ktape_format::codec::{self, Decoder, Encoder};
use ktape_format::definition::{Definition, DefinitionVisitor, visit_definitions};
use ktape_format::event::{Event, KindVisitor, visit_kinds};
use ktape_format::{Definitions, Events, Row, Table, Tape, Wanted};

/// A file has these besides its blocks: its header, and the end block.
const FILE_BYTES: usize = 512 + 64;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let (mut rows, mut events, mut rounds, mut tapes) = (1 << 16, 5_000_000, 5, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--rows" => rows = arguments.next().ok_or("--rows N")?.parse()?,
            "--events" => events = arguments.next().ok_or("--events N")?.parse()?,
            "--rounds" => rounds = arguments.next().ok_or("--rounds N")?.parse()?,
            // Cargo's.
            "--bench" => {}
            _ => tapes.push(PathBuf::from(argument)),
        }
    }
    let mut out = std::io::stdout().lock();
    if events > 0 {
        let mut sink = Blocks::new(rows);
        let Ok(()) = eager_decode::eager_decode(&mut sink, events, 1);
        measure("synthetic decode", &sink.finish(), rounds)?.print(&mut out)?;
    }
    let (mut bytes, mut bare, mut events) = (0, 0, 0);
    for tape in tapes {
        let contents = Tape::open(&tape)?.read(&Wanted::default())?;
        let mut sink = Blocks::new(rows);
        let Ok(()) = feed(&contents, &mut sink);
        let blocks = sink.finish();
        let name = tape.file_stem().unwrap_or_default().to_string_lossy();
        let name: String = name.chars().rev().take(40).collect::<Vec<_>>().into_iter().rev().collect();
        if blocks.iter().all(|block| count(&block.1) == 0) {
            continue;
        }
        let result = measure(&name, &blocks, 4 * rounds)?;
        result.print(&mut out)?;
        if result.nanoseconds {
            bytes += result.bytes;
            bare += result.bare_bytes();
            events += result.events;
        }
    }
    if events > 0 {
        let of = |bytes: usize| bytes as f64 / events as f64;
        writeln!(out, "tapes that tick in ns, together: {events} events, {:.3} B/event", of(bytes))?;
        writeln!(out, "  {:>8.4} B  of launches, device work, calls and addresses only", of(bare))?;
    }
    Ok(())
}

struct Measured {
    name: String,
    nanoseconds: bool,
    events: usize,
    blocks: usize,
    bytes: usize,
    /// Bytes by table and column, most first.
    columns: Vec<(String, usize)>,
    /// What was timed, its best time in ns an event.
    times: Vec<(&'static str, f64)>,
}

impl Measured {
    fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        let of = |bytes: f64| bytes / self.events as f64;
        let clock = if self.nanoseconds { "ns" } else { "µs" };
        writeln!(
            out,
            "\n{}: {} events in {} blocks, clock ticks in {clock}: {:.3} B/event",
            self.name,
            self.events,
            self.blocks,
            of(self.bytes as f64)
        )?;
        for (name, bytes) in self.columns.iter().take(14) {
            writeln!(out, "  {:>8.4} B  {name}", of(*bytes as f64))?;
        }
        let rest: usize = self.columns.iter().skip(14).map(|column| column.1).sum();
        writeln!(out, "  {:>8.4} B  {} more columns", of(rest as f64), self.columns.len().saturating_sub(14))?;
        writeln!(out, "  {:>8.4} B  of launches, device work, calls and addresses only", of(self.bare_bytes() as f64))?;
        let memcpy = self.times[0].1;
        for (what, ns) in &self.times {
            writeln!(out, "  {ns:>8.2} ns/event  {:>6.2} × memcpy  {what}", ns / memcpy)?;
        }
        Ok(())
    }
}

impl Measured {
    /// Without definitions and without what allocations have beside their time, address and size.
    fn bare_bytes(&self) -> usize {
        let is_definition = |name: &str| {
            let definitions = ["frame.", "stack.", "shape.", "kernel_name.", "function.", "process.", "thread."];
            let more = ["device.", "context.", "stream.", "graph.", "property.", "strings and"];
            definitions.iter().chain(&more).any(|start| name.starts_with(start))
        };
        let is_memory = |name: &str| {
            let ends = [".allocated_bytes", ".reserved_bytes", "alloc.stack", "free.stack"];
            ends.iter().any(|end| name.ends_with(end))
        };
        let bare = self.columns.iter().filter(|(name, _)| !is_definition(name) && !is_memory(name));
        bare.map(|(_, bytes)| bytes).sum()
    }
}

fn measure(name: &str, blocks: &[(Definitions, Events)], rounds: usize) -> Result<Measured, Error> {
    let events: usize = blocks.iter().map(|block| count(&block.1)).sum();
    let mut encoder = Encoder::new()?;
    let mut decoder = Decoder::new()?;
    let mut encoded = vec![Vec::new(); blocks.len()];
    for (block, out) in blocks.iter().zip(&mut encoded) {
        encoder.encode(&block.0, &block.1, out);
    }
    let mut zstd = zstd::bulk::Compressor::new(1)?;
    let mut unzstd = zstd::bulk::Decompressor::new()?;
    let mut columns: Vec<(String, usize)> = Vec::new();
    let mut count_in = |name: String, bytes| match columns.iter_mut().find(|column| column.0 == name) {
        Some(column) => column.1 += bytes,
        None => columns.push((name, bytes)),
    };
    let (mut planes, mut packed) = (Vec::new(), Vec::new());
    for (block, bytes) in blocks.iter().zip(&encoded) {
        if decoder.decode(bytes)? != *block {
            return Err("a block did not come back".into());
        }
        let mut strings = bytes.len();
        for column in codec::columns(bytes)? {
            strings -= column.bytes;
            count_in(column_name(column.table, column.column), column.bytes);
            for frame in column.frames {
                planes.push(unzstd.decompress(frame, column.rows)?);
                packed.push(frame.to_vec());
            }
        }
        count_in("strings and headers".to_owned(), strings);
    }
    columns.sort_by_key(|column| std::cmp::Reverse(column.1));
    let rows: Vec<Vec<u64>> = blocks.iter().map(rows_as_words).collect();
    let mut buffer = Vec::with_capacity(64 << 20);
    // Of each block the best of several: whoever else runs on this machine disturbs some, never all.
    let best = |blocks: usize, what: &mut dyn FnMut(usize)| {
        let mut least = vec![f64::INFINITY; blocks];
        for _ in 0..rounds {
            for (block, least) in least.iter_mut().enumerate() {
                let began = Instant::now();
                what(block);
                *least = least.min(began.elapsed().as_secs_f64() * 1e9);
            }
        }
        least.iter().sum::<f64>() / events as f64
    };
    let (count, frames) = (blocks.len(), planes.len());
    let mut times = Vec::new();
    let mut copy: Vec<u64> = Vec::new();
    let copied = best(count, &mut |block| {
        copy.clear();
        copy.extend_from_slice(black_box(&rows[block]));
        black_box(&copy);
    });
    times.push(("memcpy of the rows' bytes", copied));
    let took = best(count, &mut |block| {
        let (definitions, events) = black_box(&blocks[block]);
        encoder.encode(definitions, events, &mut encoded[block]);
    });
    times.push(("encode", took));
    let took = best(frames, &mut |frame| {
        buffer.clear();
        zstd.compress_to_buffer(black_box(&planes[frame]), &mut buffer).expect("room");
    });
    times.push(("zstd -1 alone, of the planes that it packs", took));
    let mut into = <(Definitions, Events)>::default();
    let took = best(count, &mut |block| {
        decoder.decode_into(black_box(&encoded[block]), &mut into).expect("what was encoded");
        black_box(&into);
    });
    times.push(("decode into the memory of the block before", took));
    let took = best(count, &mut |block| {
        black_box(decoder.decode(black_box(&encoded[block])).expect("what was encoded"));
    });
    times.push(("decode into new memory", took));
    let took = best(frames, &mut |frame| {
        buffer.clear();
        unzstd.decompress_to_buffer(black_box(&packed[frame]), &mut buffer).expect("what was compressed");
    });
    times.push(("zstd decompression alone, of the same planes", took));
    let bytes = FILE_BYTES + encoded.iter().map(Vec::len).sum::<usize>();
    let kernels = blocks.iter().flat_map(|block| &block.1.kernel.duration_ns);
    let nanoseconds = kernels.filter(|ns| *ns % 1000 != 0).count() * 2 > blocks.iter().map(|b| b.1.kernel.len()).sum();
    Ok(Measured { name: name.to_owned(), nanoseconds, events, blocks: blocks.len(), bytes, columns, times })
}

/// A column's table and name.
fn column_name(table: u16, column: usize) -> String {
    struct Find(u16, usize, String);
    impl Find {
        fn look<R: Row>(&mut self) {
            if R::KIND == self.0 {
                self.2 = format!("{}.{}", R::NAME, R::COLUMNS.get(self.1).map_or("?", |spec| spec.name));
            }
        }
    }
    impl KindVisitor for Find {
        type Error = std::convert::Infallible;
        fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
            self.look::<E>();
            Ok(())
        }
    }
    impl DefinitionVisitor for Find {
        type Error = std::convert::Infallible;
        fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
            self.look::<T>();
            Ok(())
        }
    }
    let mut find = Find(table, column, String::new());
    let Ok(()) = visit_kinds(&mut find);
    let Ok(()) = visit_definitions(&mut find);
    find.2
}

/// All rows of a block as a recorder holds them, for the cost of moving that many bytes.
fn rows_as_words(block: &(Definitions, Events)) -> Vec<u64> {
    struct Stage<'a>(&'a Events, Vec<u64>);
    impl KindVisitor for Stage<'_> {
        type Error = std::convert::Infallible;
        fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
            for row in E::table(self.0).rows() {
                let from = self.1.len();
                self.1.resize(from + E::STAGED_BYTES.div_ceil(8), 0);
                row.stage(&mut self.1[from..]);
            }
            Ok(())
        }
    }
    let mut stage = Stage(&block.1, Vec::new());
    let Ok(()) = visit_kinds(&mut stage);
    stage.1
}
