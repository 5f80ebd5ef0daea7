//! Every function of the driver is probed, or left out for a reason that `left_out.txt` gives.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use ktape_capture::probes::functions::{self, Meaning};
use ktape_capture::probes::library::Library;
use object::{Object as _, ObjectSymbol as _};

use super::common::{real, skipped};

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
