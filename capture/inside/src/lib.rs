//! The library inside: loaded into a process by the CUDA driver, which finds it in `CUDA_INJECTION64_PATH`.
//!
//! It tells the recorder what only the process itself can learn, above all when the GPU ran what, through rings in mapped files
//! (`ktape_ebpf::inside`). It is a guest in somebody's server: nothing in here may panic across the boundary, wait, or end the
//! process, and where the recorder is gone it goes quiet.
//!
//! No thread-safe printing, no logging, no allocation on the way of a launch.

use std::panic::catch_unwind;

/// What the driver calls in `cuInit`. Any answer but 1 is of no consequence to it.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> i32 {
    catch_unwind(|| 1).unwrap_or(0)
}
