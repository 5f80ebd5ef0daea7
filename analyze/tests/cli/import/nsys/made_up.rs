//! Made-up reports, one rule each.

use ktape_analyze::timeline::{DeviceOpKind, Submitter};
use ktape_format::Table;
use ktape_format::definition::{Context, Device, Function, Process, Stream, api_domain, property, subject};
use ktape_format::event::{allocator, clock_kind, copy_kind, memory_kind, phase, sync_kind};
use ktape_format::table::DefinitionKind;

use super::{Report, process, stack, thread};
use crate::common;

/// Names that most rows below use.
const STRINGS: &str = "INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel_v7000'), (2, '_Z1kPf'), (3, 'k(float *)'), (4, 'k'),
    (5, 'cudaMemcpyAsync_v3020'), (6, 'cudaGraphLaunch_v10000'), (7, 'step'), (8, 'main'), (9, '/bin/app'), (10, 'worker');";

fn launch(pid: i64, start: i64, correlation: i64) -> String {
    let (thread, end) = (thread(pid, pid + 1), start + 5);
    format!(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue) VALUES ({start}, {end}, 0, {thread}, {correlation}, 1, 0);"
    )
}

fn kernel(pid: i64, start: i64, correlation: i64) -> String {
    let (process, end) = (process(pid), start + 10);
    format!(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName, shortName, mangledName, gridX, blockX) VALUES ({start}, {end}, 0, 1, 7, {correlation}, {process}, 3, 4, 2, 8, 128);"
    )
}

fn call(name: i64, start: i64, correlation: i64) -> String {
    let (thread, end) = (thread(40, 41), start + 5);
    format!(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId, returnValue) VALUES ({start}, {end}, {thread}, {correlation}, {name}, 0);"
    )
}

#[test]
fn two_processes_with_one_correlation() {
    let rows = [
        STRINGS,
        &launch(40, 10, 5),
        &kernel(40, 20, 5),
        &launch(50, 110, 5),
        &kernel(50, 120, 5),
        &kernel(50, 200, 6),
    ];
    let (timeline, summary) = Report::new(2026, &rows.concat()).import();
    let calls: Vec<Option<i64>> = timeline
        .device_ops()
        .iter()
        .map(|op| match timeline.submitter(op)? {
            Submitter::Launch(row) => Some(timeline.events.launch.start_ns[row as usize]),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(calls, [Some(10), Some(110), None]);
    assert_eq!((summary.matched, summary.unmatched), (2, 1));
}

#[test]
fn the_same_run_in_the_tables_of_2022_and_2026() {
    let rows = |name: &str, meta: &str| {
        format!(
            "{STRINGS} {} {} INSERT INTO {meta} VALUES ('EXPORT_SCHEMA_VERSION', '{name}');
             INSERT INTO PROCESSES VALUES ({p}, 40, 'app'), ({q}, 50, 'idle');
             INSERT INTO ThreadNames VALUES (10, 20, {t}), (10, 20, {u});
             INSERT INTO TARGET_INFO_CUDA_STREAM VALUES (7, 0, 1, 40, 1, 4294967291, 2), (8, 0, 1, 40, 1, 0, 1);
             INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, contextId, streamId, correlationId, globalPid,
                bytes, copyKind, srcKind, dstKind) VALUES (50, 60, 0, 1, 7, 6, {p}, 4096, 1, 1, 2);",
            launch(40, 10, 5), kernel(40, 20, 5), p = process(40), q = process(50), t = thread(40, 41), u = thread(40, 99),
        )
    };
    let old = Report::new(2022, &rows("old", "EXPORT_META_DATA"));
    let new = Report::new(2026, &rows("new", "META_DATA_EXPORT"));
    for (report, version) in [(old, "old"), (new, "new")] {
        let (timeline, summary) = report.import();
        let (events, definitions) = (&timeline.events, &timeline.definitions);
        let said = |kind: DefinitionKind, id, key| definitions.property(kind as u16, id, key);
        assert_eq!(definitions.property(subject::TAPE, 0, "EXPORT_SCHEMA_VERSION"), Some(version));
        assert_eq!(definitions.kernel_name(events.kernel.shape[0]), "_Z1kPf");
        assert_eq!(said(DefinitionKind::Kernel, 1, "demangled_name"), Some("k(float *)"));
        let function: Function = definitions.get(events.launch.function[0]).unwrap();
        assert_eq!((definitions.string(function.name), function.domain), ("cudaLaunchKernel", api_domain::RUNTIME));
        assert_eq!(said(DefinitionKind::Function, 1, "versioned_name"), Some("cudaLaunchKernel_v7000"));
        let copy = events.memcpy.row(0);
        assert_eq!((copy.bytes, copy.kind), (4096, copy_kind::HTOD));
        assert_eq!((copy.source_memory, copy.target_memory), (memory_kind::PINNED, memory_kind::DEVICE));
        let stream: Stream = definitions.get(copy.stream).unwrap();
        assert_eq!((stream.native, stream.priority, stream.flags), (7, -5, 1));
        assert_eq!(definitions.get::<Context>(stream.context).unwrap().native, 1);
        assert_eq!(definitions.processes.pid, [40], "a process in which nothing happened is none");
        assert_eq!(said(DefinitionKind::Process, 1, property::NAME), Some("app"));
        assert_eq!((definitions.threads.tid[0], said(DefinitionKind::Thread, 1, property::NAME)), (41, Some("worker")));
        assert_eq!(summary.not_kept["metadata of a row without events, PROCESSES"], 1);
        assert_eq!(summary.not_kept["metadata of a row without events, ThreadNames"], 1);
        assert_eq!(summary.not_kept["metadata of a row without events, TARGET_INFO_CUDA_STREAM"], 1);
        assert_eq!(summary.not_kept_parts["column shortName"], 1);
    }
}

#[test]
fn a_function_and_a_copy_named_by_text() {
    let rows = format!(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, returnValue, name)
            VALUES (10, 15, {}, 1, 2, 'cuMemcpyHtoD_v2');
         INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, contextId, streamId, correlationId, globalPid, bytes,
            copyKind, name) VALUES (11, 14, 0, 1, 7, 1, {}, 1, 1, 'my copy');",
        thread(40, 41), process(40),
    );
    let (timeline, _) = Report::new(2022, &rows).import();
    let api = timeline.events.api.row(0);
    let function: Function = timeline.definitions.get(api.function).unwrap();
    assert_eq!((timeline.definitions.string(function.name), function.domain), ("cuMemcpyHtoD_v2", api_domain::DRIVER));
    assert_eq!(api.result, 2);
    assert_eq!(timeline.op_name(&timeline.device_ops()[0]), "my copy");
}

#[test]
fn a_device_is_the_one_that_the_process_numbers_so() {
    let gpu = |id: i64, name: &str, cuda: i64| {
        format!(
            "INSERT INTO TARGET_INFO_GPU VALUES (0, {id}, '{name}', 80, 132, 'u{id}', {cuda}, 1, 2, 32, 64, 9, 0, 'GH100');"
        )
    };
    let rows = [
        STRINGS,
        &kernel(40, 20, 5),
        &kernel(50, 20, 5),
        &gpu(0, "first", 1),
        &gpu(1, "second", 0),
        "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 50, NULL, NULL);",
    ];
    let (timeline, _) = Report::new(2026, &rows.concat()).import();
    let definitions = &timeline.definitions;
    for (number, (pid, name, uuid)) in [(40, "second", "u1"), (50, "first", "u0")].into_iter().enumerate() {
        let id = number as u32 + 1;
        let device: Device = definitions.get(id).unwrap();
        let said = |key| definitions.property(DefinitionKind::Device as u16, id, key);
        assert_eq!(definitions.get::<Process>(device.process).unwrap().pid, pid);
        assert_eq!((definitions.string(device.uuid), said(property::NAME)), (uuid, Some(name)));
        assert_eq!(said(property::THREADS_PER_MULTIPROCESSOR), Some("2048"));
        assert_eq!(said(property::COMPUTE_CAPABILITY), Some("9.0"));
    }
}

#[test]
fn a_graph_as_a_whole_is_a_range_on_its_stream_and_no_kernel() {
    let rows = format!(
        "{STRINGS} {} INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (30, 90, 0, 1, 0, 7, 5, {}, 3, 4);",
        call(6, 10, 5),
        process(40),
    );
    let (timeline, summary) = Report::new(2026, &rows).import();
    assert_eq!(timeline.device_ops(), []);
    let (range, launch) = (timeline.events.range.row(0), timeline.events.graph_launch.row(0));
    assert_eq!((range.start_ns, range.duration_ns, range.thread, range.stream), (30, 60, 0, launch.stream));
    assert_eq!(timeline.definitions.string(range.name), "CUDA graph 3");
    assert_eq!(timeline.definitions.string(range.args), r#"{"graphExecId":4}"#);
    assert_eq!(timeline.definitions.graphs.native[launch.graph as usize - 1], 3);
    assert_eq!((summary.matched, summary.unmatched), (0, 0));
}

#[test]
fn one_launch_of_a_graph_has_many_nodes() {
    let node = |start: i64, node: i64| {
        kernel(40, start, 5)
            + &format!("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET graphNodeId = {node}, graphId = 3 WHERE start = {start};")
    };
    let rows = [STRINGS, &call(6, 10, 5), &node(20, 1), &node(40, 2)];
    let (timeline, summary) = Report::new(2026, &rows.concat()).import();
    assert_eq!((timeline.events.graph_launch.len(), summary.matched), (1, 2));
    assert_eq!(timeline.events.kernel.graph_node, [1, 2]);
    assert_eq!(timeline.events.kernel.graph, [1, 1]);
}

#[test]
fn ranges_are_in_the_stacks_of_their_thread() {
    let (here, there) = (thread(40, 41), thread(40, 42));
    let rows = format!(
        "{STRINGS} {} {}
         INSERT INTO CUDA_CALLCHAINS VALUES (0, 4, 9, 1, 16, 0), (0, 8, 9, 0, 32, 1);
         UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET callchainId = 0 WHERE start = 25;
         INSERT INTO NVTX_EVENTS (start, end, eventType, text, textId, globalTid, endGlobalTid, domainId, category, int64Value) VALUES
            (0, NULL, 75, 'nccl', NULL, {here}, NULL, 9, NULL, NULL),
            (0, NULL, 33, 'comm', NULL, {here}, NULL, 9, 2, NULL),
            (10, 100, 59, NULL, 7, {here}, NULL, 0, NULL, NULL),
            (20, 30, 59, 'allreduce', NULL, {here}, NULL, 9, 2, 0),
            (5, 90, 60, 'request', NULL, {here}, {there}, 0, NULL, NULL),
            (6, 95, 60, 'whole', NULL, {here}, {here}, 0, NULL, NULL),
            (15, NULL, 59, 'open', NULL, {there}, NULL, 4, NULL, NULL),
            (26, NULL, 34, 'now', NULL, {here}, NULL, 0, NULL, NULL),
            (27, NULL, 35, 'old', NULL, {here}, NULL, 0, NULL, NULL);",
        call(5, 25, 1), call(5, 50, 2),
    );
    let (timeline, summary) = Report::new(2026, &rows).import();
    let (events, definitions) = (&timeline.events, &timeline.definitions);
    assert_eq!(
        stack(&timeline, events.api.stack[0]),
        ["whole", "step", "allreduce", "main (/bin/app)", "k (/bin/app)"]
    );
    assert_eq!(stack(&timeline, events.api.stack[1]), ["whole", "step"]);
    assert_eq!(stack(&timeline, events.mark.stack[0]), ["whole", "step", "allreduce"]);
    let range = |name: &str| events.range.rows().find(|row| definitions.string(row.name) == name).unwrap();
    assert_eq!(stack(&timeline, range("allreduce").stack), ["whole", "step"]);
    assert_eq!(definitions.string(range("allreduce").category), "nccl");
    assert_eq!(definitions.string(range("allreduce").args), r#"{"category":"comm","int64Value":0}"#);
    assert_eq!(definitions.string(range("step").category), "NVTX");
    assert_eq!(definitions.string(range("open").category), "NVTX domain 4");
    assert_eq!((range("open").phase, range("open").duration_ns), (phase::PUSH, 0));
    assert_eq!(definitions.string(range("request").args), r#"{"ended_by_thread":42}"#);
    assert_eq!((range("request").start_ns, range("request").duration_ns), (5, 85));
    assert_eq!(summary.not_kept["NVTX event of type 35"], 1);
}

#[test]
fn synchronisations_by_what_was_waited_for() {
    let strings = "INSERT INTO StringIds VALUES (20, 'cudaEventSynchronize_v3020'), (21, 'cudaStreamWaitEvent_v3020'),
        (22, 'cudaStreamSynchronize_v3020'), (23, 'cudaDeviceSynchronize_v3020'), (24, 'cudaEventRecord_v3020'),
        (25, 'cudaEventQuery_v3020');";
    let record = |correlation: i64, kind: i64, stream: i64, event: i64, record: i64| {
        format!(
            "INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES (11, 14, 0, 1, NULL, {stream}, {correlation}, {}, NULL, {kind}, {event}, {record});",
            process(40)
        )
    };
    let none = i64::from(u32::MAX);
    let rows = [
        STRINGS,
        strings,
        &call(24, 1, 1),
        &call(20, 10, 2),
        &call(21, 20, 3),
        &call(22, 30, 4),
        &call(23, 40, 5),
        &call(25, 50, 6),
        &call(22, 60, 7),
        &record(2, 1, none, 77, 900),
        &record(3, 2, 13, 77, 900),
        &record(4, 3, 7, none, 0),
        &record(5, 4, none, none, 0),
        &record(6, 1, none, 77, 0),
        &record(7, 2, 7, none, 0),
        &record(99, 3, 7, none, 0),
        &format!("INSERT INTO CUPTI_ACTIVITY_KIND_CUDA_EVENT VALUES (2, 0, 1, NULL, 7, 1, {}, 77, 900);", process(40)),
    ];
    let (timeline, summary) = Report::new(2026, &rows.concat()).import();
    let native = |stream: u32| timeline.definitions.get::<Stream>(stream).map_or(0, |stream| stream.native);
    let syncs: Vec<_> = timeline
        .events
        .sync
        .rows()
        .map(|row| (row.start_ns, row.kind, native(row.stream), row.event, row.recorded_by))
        .collect();
    assert_eq!(
        syncs,
        [
            (10, sync_kind::EVENT, 0, 77, 1),
            (30, sync_kind::STREAM, 7, 0, 0),
            (40, sync_kind::CONTEXT, 0, 0, 0),
            (50, sync_kind::EVENT, 0, 77, 0),
            (60, sync_kind::STREAM, 7, 0, 0),
        ]
    );
    let wait = timeline.events.event_wait.row(0);
    assert_eq!((wait.start_ns, native(wait.stream), wait.event, wait.recorded_by), (20, 13, 77, 1));
    let record = timeline.events.event_record.row(0);
    assert_eq!((record.start_ns, native(record.stream), record.event), (1, 7, 77));
    assert_eq!(summary.not_kept["record without its call, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"], 1);
    assert_eq!(summary.kept["detail of a call"], 7);
}

#[test]
fn memory_with_its_call() {
    let rows =
        format!(
        "INSERT INTO StringIds VALUES (30, 'cudaMalloc_v3020'), (31, 'cudaMallocAsync_v11020'), (32, 'cudaFree_v3020'),
            (33, 'cudaMallocHost_v3020'); {} {} {} {}
         INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (14, {p}, 0, 1, 4096, 0, 100, 2, 0, 'a', 1),
            (24, {p}, 0, 1, 8192, 0, 200, 2, 0, 'b', 2), (34, {p}, 0, 1, 4096, 0, 100, 2, 1, 'a', 3),
            (44, {p}, 0, 1, 1, 0, 300, 1, 0, 'c', 4), (54, {p}, 0, 1, 2, 0, 400, 4, 0, 'd', NULL);",
        call(30, 10, 1), call(31, 20, 2), call(32, 30, 3), call(33, 40, 4), p = process(40),
    );
    let (timeline, _) = Report::new(2026, &rows).import();
    let alloc = &timeline.events.alloc;
    assert_eq!(alloc.allocator, [allocator::DRIVER, allocator::POOL, allocator::PINNED, allocator::MANAGED]);
    assert_eq!((&alloc.bytes[..], &alloc.device[..]), (&[100, 200, 300, 400][..], &[1, 1, 0, 1][..]));
    assert_eq!(timeline.definitions.function_name(alloc.function[1]), "cudaMallocAsync");
    assert_eq!((alloc.thread[0], alloc.thread[3]), (timeline.events.api.thread[0], 0));
    let free = timeline.events.free.row(0);
    assert_eq!((free.address, free.bytes, timeline.definitions.function_name(free.function)), (4096, 100, "cudaFree"));
}

#[test]
fn system_calls_samples_and_overhead() {
    let here = thread(40, 41);
    let rows = format!(
        "{STRINGS} INSERT INTO StringIds VALUES (40, 'mmap'), (41, 'Lazy Function Loading'), (42, 'do_syscall_64'), (43, '[kernel]');
         INSERT INTO OSRT_API VALUES (10, 20, 27, {here}, 40, 140737488355328, 1, 0, NULL);
         INSERT INTO OSRT_CALLCHAINS (id, symbol, module, stackDepth) VALUES (0, 8, 9, 1), (0, 4, 9, 0);
         INSERT INTO COMPOSITE_EVENTS VALUES (1, 15, 3, 1, {here}, 1), (2, 12, 4, 1, {here}, 1);
         INSERT INTO SAMPLING_CALLCHAINS (id, symbol, module, kernelMode, stackDepth) VALUES (1, 8, 9, 0, 1), (1, 42, 43, 1, 0);
         INSERT INTO CUPTI_ACTIVITY_KIND_OVERHEAD VALUES (5, 9, 103, {here}, 1, 41, 7);
         INSERT INTO PROFILER_OVERHEAD VALUES (1, 3, {here}, 41, 3);
         INSERT INTO SCHED_EVENTS VALUES (1, 0, 1, {here}, 0, NULL), (2, 0, 0, {here}, 0, NULL);"
    );
    let (timeline, summary) = Report::new(2026, &rows).import();
    let (events, definitions) = (&timeline.events, &timeline.definitions);
    let call = events.api.row(0);
    assert_eq!((call.correlation, call.result, definitions.function_name(call.function)), (0, 0, "mmap"));
    assert_eq!(definitions.string(call.args), r#"{"nestingLevel":1,"returnValue":140737488355328}"#);
    assert_eq!(stack(&timeline, call.stack), ["main (/bin/app)", "k (/bin/app)"]);
    assert_eq!((&events.cpu_sample.start_ns[..], &events.cpu_sample.cpu[..]), (&[12, 15][..], &[4, 3][..]));
    assert_eq!(stack(&timeline, events.cpu_sample.stack[1]), ["main (/bin/app)", "do_syscall_64"]);
    assert_eq!(events.cpu_sample.stack[0], 0);
    assert_eq!((&events.slice.start_ns[..], &events.slice.duration_ns[..]), (&[1, 5][..], &[2, 4][..]));
    assert_eq!(summary.not_kept["table SCHED_EVENTS"], 2);
}

#[test]
fn unified_memory_moves_and_peers() {
    let copy = |start: i64, kind: i64, source: i64, target: i64, rest: &str| {
        format!(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, contextId, streamId, correlationId, globalPid, bytes, copyKind, srcDeviceId, dstDeviceId, migrationCause) VALUES ({start}, {start} + 1, 0, 1, 7, 0, {}, 1, {kind}, {source}, {target}, {rest});",
            process(40)
        )
    };
    let rows = [copy(1, 11, 0, 0, "2"), copy(2, 10, 0, 3, "NULL"), copy(3, 99, 0, 0, "NULL")];
    let (timeline, _) = Report::new(2026, &rows.concat()).import();
    let (copies, definitions) = (&timeline.events.memcpy, &timeline.definitions);
    assert_eq!(copies.kind, [copy_kind::HTOD, copy_kind::PTOP, copy_kind::UNKNOWN]);
    assert_eq!(copies.source_memory[0], memory_kind::MANAGED);
    assert_eq!(definitions.string(copies.args[0]), r#"{"migrationCause":2}"#);
    assert_eq!(definitions.get::<Device>(copies.peer_device[1]).unwrap().index, 3);
    assert_eq!((copies.peer_device[0], copies.peer_device[2]), (0, 0));
}

#[test]
fn what_is_said_of_the_report() {
    let rows = "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000001, 'a', 'b', 5);
        INSERT INTO META_DATA_CAPTURE VALUES ('EVENT', 'Cuda'), ('EVENT', 'Nvtx'), ('PROCESS_0:COMMAND', 'python'),
            ('PROCESS_0:ENVIRONMENT_VARIABLE', 'TOKEN=secret');
        INSERT INTO DIAGNOSTIC_EVENT VALUES (-5, 1, 2, 2, 'events were dropped', NULL);
        INSERT INTO ANALYSIS_DETAILS VALUES (1, 1000, 5, 1005);
        CREATE TABLE CUDA_UM_CPU_PAGE_FAULT_EVENTS (start INTEGER); INSERT INTO CUDA_UM_CPU_PAGE_FAULT_EVENTS VALUES (1), (2);
        CREATE TABLE TABLE_OF_2030 (a); INSERT INTO TABLE_OF_2030 VALUES (1);";
    let (timeline, summary) = Report::new(2026, rows).import();
    let said = |key| timeline.definitions.property(subject::TAPE, 0, key);
    assert_eq!(said("EVENT"), Some(r#"["Cuda","Nvtx"]"#));
    assert_eq!(said("PROCESS_0:COMMAND"), Some("python"));
    assert_eq!(said("ANALYSIS_DETAILS.duration"), Some("1000"));
    assert!(said("diagnostics").unwrap().contains("events were dropped"));
    assert!(!timeline.definitions.strings.iter().any(|text| text.contains("secret")));
    let clock = timeline.events.clock.row(0);
    assert_eq!((clock.start_ns, clock.clock, clock.value_ns), (0, clock_kind::UNIX, 1_700_000_000_000_000_001));
    assert_eq!(summary.not_kept["variable of the environment"], 1);
    assert_eq!(summary.not_kept["table CUDA_UM_CPU_PAGE_FAULT_EVENTS"], 2);
    assert_eq!(summary.not_kept["table TABLE_OF_2030"], 1);
    assert!(said(property::NOT_KEPT).unwrap().contains("TABLE_OF_2030"));
}

/// A column that a later version adds is an argument where its table has such, else counted.
#[test]
fn columns_of_2030() {
    let rows = [
        STRINGS,
        &launch(40, 10, 5),
        &kernel(40, 20, 5),
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN warpSpecialised INTEGER DEFAULT 3;
         ALTER TABLE StringIds ADD COLUMN language TEXT DEFAULT 'en';
         ALTER TABLE PROCESSES ADD COLUMN user TEXT DEFAULT 'root';
         INSERT INTO PROCESSES (globalPid, name) VALUES (1, 'a');",
    ];
    let (timeline, summary) = Report::new(2026, &rows.concat()).import();
    assert_eq!(timeline.definitions.string(timeline.events.kernel.args[0]), r#"{"warpSpecialised":3}"#);
    assert_eq!(summary.not_kept_parts["column user"], 1);
}

#[test]
fn every_command_opens_a_report() {
    let rows = [STRINGS, &launch(40, 10, 5), &kernel(40, 20, 5)];
    let report = Report::new(2026, &rows.concat());
    let at = |name: &str| report.folder.path().join(name).display().to_string();
    let path = report.path.display().to_string();
    for args in [
        vec!["import", &path, "-o", &at("a.ktape")],
        vec!["import", &path, "--lenient", "-o", &at("b.ktape")],
        vec!["info", &path],
        vec!["info", &at("a.ktape"), "--kernels"],
        vec!["perfetto", &path, "-o", &at("a.pftrace")],
        vec!["flamegraph", &path, "-o", &at("a.svg")],
    ] {
        let output = common::analyze(&args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let output = common::analyze(["info", &at("a.ktape"), "--kernels"]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("k(float*)"), "the kernel by its name");
    let ops = report.import().0.device_ops();
    assert_eq!(ops.iter().map(|op| op.kind).collect::<Vec<_>>(), [DeviceOpKind::Kernel]);
}
