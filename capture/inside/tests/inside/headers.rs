//! The beginnings of CUPTI's records, as they are read, against the headers of each version of CUDA that is claimed.

use std::fs;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use super::skip;
use ktape_inside::cupti::callback::CallbackData;
use ktape_inside::cupti::records::{Copy, Kernel, Overhead, PeerCopy, Set};

macro_rules! fields {
    ($type:ty: $($field:ident = $name:literal),* $(,)?) => {
        [$(($name, offset_of!($type, $field))),*].as_slice()
    };
}

#[test]
fn what_is_read_of_records_lies_where_the_headers_of_all_versions_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cupti");
    let Ok(versions) = fs::read_dir(&folder) else { return skip("fixtures/cupti/setup.sh has not run") };
    if Command::new("cc").arg("--version").output().is_err() {
        return skip("there is no C compiler");
    }
    let mut versions: Vec<_> = versions.map(|entry| entry.unwrap().path()).collect();
    versions.sort();
    assert!(!versions.is_empty());
    for version in versions {
        let header = fs::read_to_string(version.join("include/cupti_activity.h")).unwrap();
        compare(
            &version,
            "Kernel",
            newest(&header, "CUpti_ActivityKernel"),
            fields!(Kernel:
            kind = "kind", registers = "registersPerThread", start = "start", end = "end", device = "deviceId",
            context = "contextId", stream = "streamId", grid = "gridX", block = "blockX",
            static_shared = "staticSharedMemory", dynamic_shared = "dynamicSharedMemory",
            local_per_thread = "localMemoryPerThread", correlation = "correlationId", name = "name",
            graph_node = "graphNodeId", graph = "graphId"),
        );
        compare(
            &version,
            "Copy",
            newest(&header, "CUpti_ActivityMemcpy"),
            fields!(Copy:
            kind = "kind", copy = "copyKind", source = "srcKind", target = "dstKind", bytes = "bytes", start = "start",
            end = "end", device = "deviceId", context = "contextId", stream = "streamId",
            correlation = "correlationId", graph_node = "graphNodeId", graph = "graphId"),
        );
        compare(
            &version,
            "PeerCopy",
            newest(&header, "CUpti_ActivityMemcpyPtoP"),
            fields!(PeerCopy:
            kind = "kind", copy = "copyKind", source = "srcKind", target = "dstKind", bytes = "bytes", start = "start",
            end = "end", device = "deviceId", context = "contextId", stream = "streamId",
            source_device = "srcDeviceId", target_device = "dstDeviceId", correlation = "correlationId",
            graph_node = "graphNodeId", graph = "graphId"),
        );
        compare(
            &version,
            "Set",
            newest(&header, "CUpti_ActivityMemset"),
            fields!(Set:
            kind = "kind", value = "value", bytes = "bytes", start = "start", end = "end", device = "deviceId",
            context = "contextId", stream = "streamId", correlation = "correlationId", memory = "memoryKind",
            graph_node = "graphNodeId", graph = "graphId"),
        );
        compare(
            &version,
            "Overhead",
            newest(&header, "CUpti_ActivityOverhead"),
            fields!(Overhead: kind = "kind", overhead = "overheadKind", start = "start", end = "end"),
        );
        compare(
            &version,
            "CallbackData",
            "CUpti_CallbackData".to_owned(),
            fields!(CallbackData:
            site = "callbackSite", function_name = "functionName", function_params = "functionParams",
            function_return_value = "functionReturnValue", symbol_name = "symbolName", context = "context",
            context_uid = "contextUid", correlation_data = "correlationData", correlation_id = "correlationId"),
        );
    }
}

/// The structure of this name that has the highest number behind it, or none: what records of this version are.
fn newest(header: &str, name: &str) -> String {
    let numbers = header.lines().filter_map(|line| line.strip_prefix("} ")?.strip_prefix(name)?.strip_suffix(';'));
    let newest = numbers.filter_map(|number| number.parse::<u32>().ok()).max();
    newest.map_or_else(|| name.to_owned(), |number| format!("{name}{number}"))
}

fn compare(version: &Path, ours: &str, theirs: String, fields: &[(&str, usize)]) {
    let folder = tempfile::tempdir().unwrap();
    let asserts: String = fields
        .iter()
        .map(|(name, offset)| {
            format!("_Static_assert(offsetof({theirs}, {name}) == {offset}, \"{theirs}.{name} is elsewhere than in {ours}\");\n")
        })
        .collect();
    let source = folder.path().join("test.c");
    let includes = "#include <stddef.h>\n#include <cupti_activity.h>\n#include <cupti_callbacks.h>\n";
    fs::write(&source, format!("{includes}{asserts}")).unwrap();
    let compiled = Command::new("cc")
        .args(["-w", "-fsyntax-only", "-I"])
        .arg(version.join("include"))
        .arg(source)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}: {}", version.display(), String::from_utf8_lossy(&compiled.stderr));
}
