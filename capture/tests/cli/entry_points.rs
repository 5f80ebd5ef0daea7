//! Every function of the driver and of NCCL is probed, or left out for a reason that `left_out.txt` gives; and where it says what
//! matters, it says so in the argument that is read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use ktape_capture::probes::collectives::COLLECTIVES;
use ktape_capture::probes::functions::{self, Meaning};
use ktape_capture::probes::graphs::{GraphCall, Params};
use ktape_capture::probes::library::Library;
use ktape_capture::probes::{Kernel, sites};
use object::{Object as _, ObjectSymbol as _};

use super::common::{fetched, real, skipped};

/// What was gone through when the list was written.
const KNOWN_DRIVER: &str = "535.261.03";

/// Reasons by name.
fn left_out() -> BTreeMap<&'static str, &'static str> {
    let mut reasons = BTreeMap::new();
    for paragraph in include_str!("left_out.txt").split("\n\n") {
        // A reason may go on in lines that are indented by two, names are by four.
        let Some(reason) = paragraph.trim_start().strip_prefix("- ") else { continue };
        let names = reason.lines().filter(|line| line.starts_with("    ")).flat_map(str::split_whitespace);
        for name in names {
            assert_eq!(reasons.insert(name, reason), None, "{name} stands twice");
        }
    }
    assert!(reasons.len() > 400, "{}", reasons.len());
    reasons
}

fn without_variant(symbol: &str) -> &str {
    symbol.strip_suffix("_ptsz").or(symbol.strip_suffix("_ptds")).unwrap_or(symbol)
}

/// Meanings of the driver's functions that are probed, by symbol.
fn probed() -> BTreeMap<String, Meaning> {
    let of_driver = functions::all()
        .into_iter()
        .filter(|function| function.symbol.strip_prefix("cu").is_some_and(|rest| rest.starts_with(char::is_uppercase)));
    of_driver.map(|function| (function.symbol, function.meaning)).collect()
}

/// What is neither probed nor left out.
fn undecided<'a>(symbols: impl IntoIterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let (probed, left_out) = (probed(), left_out());
    let is_undecided = |symbol: &&str| !probed.contains_key(*symbol) && !left_out.contains_key(without_variant(symbol));
    symbols.into_iter().filter(is_undecided).collect()
}

#[test]
fn nothing_is_both_probed_and_left_out() {
    let left_out = left_out();
    let both: Vec<_> = probed().into_keys().filter(|symbol| left_out.contains_key(without_variant(symbol))).collect();
    assert!(both.is_empty(), "{both:?}");
}

#[test]
fn every_export_of_the_real_driver_is_probed_or_left_out_for_a_reason() {
    let Some(path) = real("driver/libcuda.so.1") else { return };
    let content = fs::read(path).expect("the driver");
    let file = object::File::parse(&content[..]).expect("an ELF file");
    let defined = file.dynamic_symbols().filter(|symbol| symbol.is_definition());
    let names: Vec<&str> =
        defined.filter_map(|symbol| symbol.name().ok()).filter(|name| name.starts_with("cu")).collect();
    let undecided = undecided(names.iter().copied());
    let is_known = content.windows(KNOWN_DRIVER.len()).any(|window| window == KNOWN_DRIVER.as_bytes());
    if is_known {
        assert!(names.len() > 600 && undecided.is_empty(), "of {}: {undecided:?}", names.len());
    } else if !undecided.is_empty() {
        skipped(&format!("this driver is not {KNOWN_DRIVER}, and has functions that nobody decided on: {undecided:?}"));
    }
    // One address has one probe, and one meaning.
    let probed = probed();
    let library = Library::parse(&content[..]).expect("an ELF file");
    let found = library.functions(probed.keys().map(String::as_str)).expect("its symbols").found;
    assert!(found.len() > 250, "{}", found.len());
    for function in found {
        let names = function.names.iter().chain(&function.aliases);
        let meanings: Vec<_> = names.filter_map(|name| probed.get(name)).collect();
        assert!(meanings.iter().all(|meaning| *meaning == meanings[0]), "{:?}: {meanings:?}", function.names);
    }
}

/// `cuda.h`, as a client of the stand-in driver brings it along.
fn header() -> Option<String> {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder").to_owned();
    let packages = target.join("simcuda/clients312/lib/python3.12/site-packages/nvidia/cu13/include/cuda.h");
    let text = fs::read_to_string(&packages).ok();
    if text.is_none() {
        skipped(&format!("no {}: run fixtures/simcuda/setup.sh", packages.display()));
    }
    text
}

#[test]
fn every_function_of_the_header_is_probed_with_all_its_variants_or_left_out() {
    let Some(text) = header() else { return };
    let name =
        |rest: &str| rest.split(|byte: char| byte != '_' && !byte.is_alphanumeric()).next().unwrap_or("").to_owned();
    let mut names: BTreeSet<String> =
        text.split("CUDAAPI ").skip(1).map(name).filter(|name| name.starts_with("cu")).collect();
    // As programs get them: __CUDA_API_PTSZ(cuLaunchKernel) is cuLaunchKernel_ptsz for some.
    for (macros, suffix) in [("__CUDA_API_PTSZ(", "_ptsz"), ("__CUDA_API_PTDS(", "_ptds")] {
        let uses = text.split(macros).skip(1).map(name).filter(|name| name.starts_with("cu"));
        names.extend(uses.map(|name| name + suffix).collect::<Vec<_>>());
    }
    // `#define cuCtxCreate cuCtxCreate_v4`
    let defines = text.lines().filter_map(|line| line.trim().strip_prefix("#define cu")?.split_whitespace().nth(1));
    names.extend(defines.filter(|name| name.starts_with("cu")).map(str::to_owned));
    assert!(names.len() > 500, "{}", names.len());
    let undecided = undecided(names.iter().map(String::as_str));
    assert!(undecided.is_empty(), "{undecided:?}");
    // And nothing that is probed is a name that nobody has: the first versions are in the library alone.
    let Some(path) = real("driver/libcuda.so.1") else { return };
    let content = fs::read(path).expect("the driver");
    let file = object::File::parse(&content[..]).expect("an ELF file");
    names.extend(file.dynamic_symbols().filter_map(|symbol| symbol.name().ok()).map(str::to_owned));
    let unheard_of: Vec<_> = probed().into_keys().filter(|symbol| !names.contains(symbol)).collect();
    assert!(unheard_of.is_empty(), "{unheard_of:?}");
}

/// The parameters of each function that a header declares, by name. A function may be declared more than once.
fn declarations<'a>(text: &'a str, before: &str) -> BTreeMap<&'a str, BTreeSet<Vec<&'a str>>> {
    let mut all: BTreeMap<&str, BTreeSet<Vec<&str>>> = BTreeMap::new();
    for declaration in text.split(before).skip(1) {
        let Some((name, rest)) = declaration.split_once('(') else { continue };
        let Some((parameters, _)) = rest.split_once(')') else { continue };
        let last_word = |parameter: &'a str| {
            parameter
                .split(|byte: char| byte != '_' && !byte.is_alphanumeric())
                .rfind(|word| !word.is_empty())
                .unwrap_or("")
        };
        all.entry(name.trim()).or_default().insert(parameters.split(',').map(last_word).collect());
    }
    all
}

/// The positions of arguments of what a call means, each with what the header may call it.
fn arguments(meaning: Meaning) -> Vec<(u8, &'static [&'static str])> {
    const STREAM: &[&str] = &["hStream", "stream"];
    const BYTES: &[&str] = &["ByteCount", "size", "bytesize"];
    match meaning {
        Meaning::Launch => vec![(0, &["f"]), (1, &["gridDimX"]), (7, &["sharedMemBytes"]), (8, STREAM)],
        Meaning::LaunchGrid { stream: Some(stream), .. }
        | Meaning::Queued { stream, .. }
        | Meaning::Other { stream: Some(stream) }
        | Meaning::CopyShape { stream: Some(stream), .. }
        | Meaning::EventWait { stream: Some(stream) } => vec![(stream, STREAM)],
        Meaning::Copy { from, bytes, stream, .. } => {
            let source: &[&str] = &["src", "srcHost", "srcDevice", "srcArray"];
            let bytes = [(from, source), (bytes, BYTES)];
            bytes.into_iter().chain(stream.map(|stream| (stream, STREAM))).collect()
        }
        Meaning::CopyPeer { stream } => {
            let all: [(u8, &[&str]); 3] = [(0, &["dstDevice"]), (2, &["srcDevice"]), (4, BYTES)];
            all.into_iter().chain(stream.map(|stream| (stream, STREAM))).collect()
        }
        Meaning::CopyBatch { stream } => {
            vec![(0, &["dsts"]), (1, &["srcs"]), (2, &["sizes"]), (3, &["count"]), (stream, STREAM)]
        }
        Meaning::CopyShapes { stream } => vec![(0, &["numOps"]), (1, &["opList"]), (stream, STREAM)],
        Meaning::Set { value, count, rows, stream, .. } => {
            let all: [(u8, &[&str]); 2] = [(value, &["uc", "us", "ui"]), (count, &["N", "Width"])];
            let rows = rows.map(|rows| (rows, &["Height"][..]));
            all.into_iter().chain(rows).chain(stream.map(|stream| (stream, STREAM))).collect()
        }
        Meaning::EventRecord { event, stream } => {
            let event: (u8, &[&str]) = (event, &["hEvent"]);
            [event].into_iter().chain(stream.map(|stream| (stream, STREAM))).collect()
        }
        Meaning::GraphInstantiate => vec![(1, &["hGraph"])],
        Meaning::Graph(call) => graph_arguments(call),
        Meaning::GraphLaunch => vec![(0, &["hGraphExec", "hGraph"]), (1, STREAM)],
        Meaning::Alloc { bytes, stream, .. } => {
            [(bytes, BYTES)].into_iter().chain(stream.map(|stream| (stream, STREAM))).collect()
        }
        Meaning::Free { stream: Some(stream), .. } => vec![(stream, STREAM)],
        Meaning::Register => vec![(0, &["p"]), (1, BYTES)],
        Meaning::Reserve | Meaning::Map | Meaning::Unmap | Meaning::Range => vec![(0, &["ptr"]), (1, BYTES)],
        Meaning::ContextCreate { device } | Meaning::ContextOn { device } => vec![(device, &["dev"])],
        Meaning::StreamCreate { flags, priority } => {
            let flags: (u8, &[&str]) = (flags, &["Flags", "flags"]);
            [flags].into_iter().chain(priority.map(|priority| (priority, &["priority"][..]))).collect()
        }
        Meaning::Collective(at) => {
            let mut all: Vec<(u8, &[&str])> = vec![
                (at.count, &["count", "sendcount", "recvcount"]),
                (at.count + 1, &["datatype"]),
                (at.communicator, &["comm"]),
                (at.communicator + 1, STREAM),
            ];
            all.extend(at.reduction.map(|reduction| (reduction, &["op"][..])));
            all.extend(at.rank.map(|rank| (rank, &["root", "peer"][..])));
            all
        }
        _ => Vec::new(),
    }
}

/// The same of calls that concern graphs.
fn graph_arguments(call: GraphCall) -> Vec<(u8, &'static [&'static str])> {
    const GRAPH: &[&str] = &["hGraph"];
    const NODE: &[&str] = &["hNode"];
    const PARAMS: &[&str] = &["nodeParams", "copyParams", "memsetParams", "childGraph"];
    const EXEC: (u8, &[&str]) = (0, &["hGraphExec"]);
    match call {
        GraphCall::BeginCapture { graph, .. } => {
            [(0, &["hStream"][..])].into_iter().chain(graph.map(|graph| (graph, GRAPH))).collect()
        }
        GraphCall::EndCapture { hands_out: true } => vec![(0, &["hStream"]), (1, &["phGraph"])],
        GraphCall::EndCapture { hands_out: false } => vec![(0, &["hStream"])],
        GraphCall::Create => vec![(0, &["phGraph"])],
        GraphCall::Destroy => vec![(0, GRAPH)],
        GraphCall::Clone => vec![(0, &["phGraphClone"]), (1, &["originalGraph"])],
        GraphCall::FindInClone => vec![(0, &["phNode"]), (1, &["hOriginalNode"]), (2, &["hClonedGraph"])],
        GraphCall::Add { params: Params::Unread(_), .. } => vec![(0, &["phGraphNode"]), (1, GRAPH)],
        GraphCall::Add { at, .. } => vec![(0, &["phGraphNode"]), (1, GRAPH), (at, PARAMS)],
        GraphCall::DestroyNode => vec![(0, NODE)],
        GraphCall::Set { .. } => vec![(0, NODE), (1, PARAMS)],
        GraphCall::SetInExec { .. } => vec![EXEC, (1, NODE), (2, PARAMS)],
        GraphCall::SetEnabled => vec![EXEC, (1, NODE), (2, &["isEnabled"])],
        GraphCall::Update => vec![EXEC, (1, GRAPH)],
        GraphCall::ExecDestroy => vec![EXEC],
    }
}

/// What is at another place than the table has it. Of a function with several declarations one has to fit.
fn misplaced(text: &str, before: &str, of: impl Iterator<Item = (String, Meaning)>) -> (usize, Vec<String>) {
    let declared = declarations(text, before);
    let mut checked = 0;
    let mut wrong = Vec::new();
    for (symbol, meaning) in of {
        let plain = without_variant(&symbol);
        // `#define cuMemAlloc cuMemAlloc_v2` stands in front of the declaration of cuMemAlloc.
        let known = declared.get(plain).or_else(|| {
            plain
                .rsplit_once("_v")
                .filter(|(_, version)| version.parse::<u32>().is_ok())
                .and_then(|(base, _)| declared.get(base))
        });
        let Some(known) = known else { continue };
        let fits = |parameters: &Vec<&str>| {
            let named =
                |(at, names): &(u8, &[&str])| parameters.get(usize::from(*at)).is_some_and(|name| names.contains(name));
            arguments(meaning).iter().all(named)
        };
        checked += usize::from(!arguments(meaning).is_empty());
        if !known.iter().any(fits) {
            wrong.push(format!("{symbol}: {meaning:?} of {known:?}"));
        }
    }
    (checked, wrong)
}

#[test]
fn what_is_read_of_a_call_is_what_the_header_calls_so() {
    let Some(text) = header() else { return };
    let (checked, wrong) = misplaced(&text, "CUDAAPI ", probed().into_iter());
    assert!(checked > 120 && wrong.is_empty(), "of {checked}:\n{}", wrong.join("\n"));
}

/// The real NCCL, which needs no GPU to be looked at.
#[test]
fn every_function_of_the_real_nccl_is_probed_or_left_out_for_a_reason() {
    let (Some(path), Some(header)) = (fetched("libnccl", "library/libnccl.so.2"), fetched("libnccl", "library/nccl.h"))
    else {
        return;
    };
    let names: Vec<&str> = COLLECTIVES.iter().map(|function| function.name).collect();
    let file = object::read::ReadCache::new(fs::File::open(path).expect("NCCL"));
    let library = Library::parse(&file).expect("an ELF file");
    let found = sites(&library, names.iter().copied(), Kernel::OLD).expect("its symbols");
    assert!(found.missing.is_empty() && found.refused.is_empty(), "{:?} {:?}", found.missing, found.refused);
    assert_eq!(found.sites.len(), names.len());
    let text = fs::read_to_string(header).expect("nccl.h");
    let declared = declarations(&text, "ncclResult_t ");
    let left_out = left_out();
    let is_undecided = |name: &&str| name.starts_with("nccl") && !names.contains(name) && !left_out.contains_key(*name);
    let undecided: Vec<_> = declared.keys().copied().filter(|name| is_undecided(name)).collect();
    assert!(declared.len() > 60 && undecided.is_empty(), "of {}: {undecided:?}", declared.len());
    let meanings = COLLECTIVES.iter().map(|function| (function.name.to_owned(), function.meaning));
    let (checked, wrong) = misplaced(&text, "ncclResult_t ", meanings);
    assert!(checked > 20 && wrong.is_empty(), "of {checked}:\n{}", wrong.join("\n"));
}
