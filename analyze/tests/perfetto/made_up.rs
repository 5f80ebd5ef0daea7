//! A made-up PyTorch trace whose answers are known: each of the things that are hard to show, once.

use serde_json::{Value, json};

/// Count and nanoseconds of its kernels: two that overlap on one stream, three of one graph, one launched before the
/// recording began.
pub(crate) const KERNELS: (i64, i64) = (6, 100_250 + 50_000 + 30_000 + 30_000 + 10_000 + 3_000);
/// One copy, one memset.
pub(crate) const COPIES: (i64, i64) = (2, 20_000 + 1_000);
/// Operations whose call is in the trace: all but the first kernel.
pub(crate) const SUBMITTED: i64 = 7;
/// Their time; all were called from Python.
pub(crate) const STACKED_NS: i64 = KERNELS.1 + COPIES.1 - 3_000;
/// The first of the overlapping kernels.
pub(crate) const GEMM: &str = "void gemm<float, 4>(float const*, float*, int)";

/// The trace as JSON. Times are microseconds.
pub(crate) fn kineto() -> String {
    let events = [
        python(1, None, "main.py(1): main", 1000.0, 1000.0),
        python(2, Some(1), "model.py(10): forward", 1010.0, 490.0),
        host("user_annotation", "step 1", 1005.0, 395.0, json!({})),
        host("cpu_op", "aten::mm", 1020.0, 80.0, json!({ "Input Dims": [[64, 64], [64, 64]] })),
        // Begins within the annotation and ends outside.
        host("cpu_op", "aten::copy_", 1390.0, 60.0, json!({})),
        call("cudaLaunchKernel", 1030.0, 5.0, 1),
        call("cudaLaunchKernel", 1040.0, 5.0, 2),
        call("cudaMemcpyAsync", 1395.0, 10.0, 3),
        call("cudaMemsetAsync", 1420.0, 3.0, 4),
        call("cudaGraphLaunch", 1460.0, 20.0, 5),
        call("cudaStreamSynchronize", 1600.0, 300.0, 6),
        kernel("void before<int>(int*)", 7, 1001.0, 3.0, 99),
        kernel(GEMM, 7, 1050.001, 100.25, 1),
        kernel("void relu<float>(float*)", 7, 1140.0, 50.0, 2),
        device(
            "gpu_memcpy",
            "Memcpy HtoD (Pinned -> Device)",
            7,
            1500.0,
            20.0,
            json!({ "correlation": 3, "bytes": 4096 }),
        ),
        device("gpu_memset", "Memset (Device)", 7, 1525.0, 1.0, json!({ "correlation": 4, "bytes": 512 })),
        kernel("void node<1>(int*)", 7, 1550.0, 30.0, 5),
        kernel("void node<2>(int*)", 20, 1550.5, 30.0, 5),
        kernel("void node<3>(int*)", 7, 1585.0, 10.0, 5),
        device(
            "cuda_sync",
            "Stream Sync",
            7,
            1601.0,
            298.0,
            json!({ "cuda_sync_kind": "Stream Sync", "correlation": 6 }),
        ),
        json!({ "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100, "tid": 100, "ts": 1050.0,
            "args": { "Total Reserved": 2_097_152, "Total Allocated": 4096, "Bytes": 4096, "Addr": 139_637_976_727_552_u64,
                "Device Id": 0, "Device Type": 1 } }),
        json!({ "ph": "M", "name": "process_name", "pid": 100, "tid": 0, "ts": 1000.0, "args": { "name": "python3" } }),
    ];
    let trace = json!({
        "schemaVersion": 1,
        "deviceProperties": [{ "id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0, "numSms": 132,
            "warpSize": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536,
            "sharedMemPerBlock": 49152, "sharedMemPerBlockOptin": 232_448, "sharedMemPerMultiprocessor": 233_472 }],
        "traceEvents": events,
    });
    trace.to_string()
}

fn complete(cat: &str, name: &str, pid: u32, tid: u32, (ts, dur): (f64, f64), args: Value) -> Value {
    json!({ "ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args })
}

fn host(cat: &str, name: &str, ts: f64, dur: f64, args: Value) -> Value {
    complete(cat, name, 100, 100, (ts, dur), args)
}

fn python(id: u32, parent: Option<u32>, name: &str, ts: f64, dur: f64) -> Value {
    host("python_function", name, ts, dur, json!({ "Python id": id, "Python parent id": parent }))
}

fn call(name: &str, ts: f64, dur: f64, correlation: u32) -> Value {
    host("cuda_runtime", name, ts, dur, json!({ "cbid": 0, "correlation": correlation }))
}

fn device(cat: &str, name: &str, stream: u32, ts: f64, dur: f64, mut args: Value) -> Value {
    args["device"] = 0.into();
    args["context"] = 1.into();
    args["stream"] = stream.into();
    complete(cat, name, 0, stream, (ts, dur), args)
}

fn kernel(name: &str, stream: u32, ts: f64, dur: f64, correlation: u32) -> Value {
    let args = json!({ "correlation": correlation, "registers per thread": 96, "shared memory": 1024, "grid": [132, 1, 1],
        "block": [256, 1, 1], "queued": 0, "est. achieved occupancy %": 25 });
    device("kernel", name, stream, ts, dur, args)
}
