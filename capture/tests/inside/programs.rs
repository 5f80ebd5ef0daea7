//! The programs that are recorded.

use super::common::with_driver;

/// A program behind what it works with: two kernels, memory of the device and of the host, two streams; `launch` returns the driver's
/// word.
macro_rules! with_streams {
    ($program:literal) => {
        with_driver!(concat!(
            r#"
import os, signal
from ctypes import c_size_t
module = handle(cu.cuModuleLoadData, b"SIMCUDA-IMAGE\nkernel gemm\nkernel softmax\n")
gemm, softmax = handle(cu.cuModuleGetFunction, module, b"gemm"), handle(cu.cuModuleGetFunction, module, b"softmax")
memory = handle(cu.cuMemAlloc_v2, c_size_t(1 << 20))
first, second = handle(cu.cuStreamCreate, 1), handle(cu.cuStreamCreate, 1)
host = ctypes.create_string_buffer(4096)
def launch(function, blocks, stream):
    return cu.cuLaunchKernel(function, blocks, 1, 1, 128, 1, 1, 64, stream, None, None)
"#,
            $program
        ))
    };
}

/// Kernels, copies and memsets in two streams, as often as the argument says.
pub(crate) const WORK: &str = with_streams!(
    r#"
for index in range(int(sys.argv[1])):
    check(launch(gemm, 16 + index % 3, first))
    check(launch(softmax, 8, second))
    check(cu.cuMemcpyHtoDAsync_v2(memory, host, c_size_t(256 + index), first))
    check(cu.cuMemsetD32Async(memory, 7, c_size_t(64), second))
    check(cu.cuMemcpyDtoDAsync_v2(ctypes.c_void_p(memory.value + 8192), memory, c_size_t(128), second))
    check(cu.cuMemcpyDtoH_v2(host, memory, c_size_t(512)))
    check(cu.cuMemsetD8_v2(memory, 1, c_size_t(1024)))
    if index % 50 == 0:
        check(cu.cuStreamSynchronize(first))
check(cu.cuCtxSynchronize())
"#
);

/// Launches, and is killed while they are under way.
pub(crate) const KILLED: &str = with_streams!(
    r#"
for index in range(int(sys.argv[1])):
    check(launch(gemm, 16, first))
    if index == 1000:
        check(cu.cuStreamSynchronize(first))
os.kill(os.getpid(), signal.SIGKILL)
"#
);

/// Launches that the driver refuses, among others.
pub(crate) const REFUSED: &str = with_streams!(
    r#"
for index in range(3):
    assert cu.cuLaunchKernel(gemm, 0, 1, 1, 128, 1, 1, 64, first, None, None) != 0
    check(launch(gemm, 4, first))
check(cu.cuCtxSynchronize())
"#
);

/// Launches, prints the environment of a child to a file, and has a child launch.
pub(crate) const PARENT: &str = with_streams!(
    r#"
import subprocess
check(launch(gemm, 16, first))
if sys.argv[1] == "parent":
    subprocess.run("env -u _ | sort > environment", shell=True, check=True)
    subprocess.run([sys.executable, "-c", sys.argv[2], "child"], check=True)
check(cu.cuCtxSynchronize())
"#
);

/// A graph of one kernel, and one that is empty, launched as often as the argument says.
pub(crate) const FULL_AND_EMPTY_GRAPHS: &str = with_streams!(
    r#"
def graph_of(capture):
    check(cu.cuStreamBeginCapture_v2(first, 0))
    capture()
    graph = handle(lambda out: cu.cuStreamEndCapture(first, out))
    return handle(cu.cuGraphInstantiateWithFlags, graph, ctypes.c_uint64(0))
full, empty = graph_of(lambda: check(launch(gemm, 16, first))), graph_of(lambda: None)
for index in range(int(sys.argv[1])):
    check(cu.cuGraphLaunch(full, first))
    check(cu.cuGraphLaunch(empty, first))
check(cu.cuCtxSynchronize())
"#
);

/// Prints what CUDA says of what it does, and ends with the code that the argument says.
pub(crate) const UNNOTICED: &str = with_streams!(
    r#"
runtime = ctypes.CDLL("libcudart.so.12")
for index in range(20):
    check(launch(gemm, 16, (None, first, second)[index % 3]))
    print(launch(gemm, 0, first), runtime.cudaGetLastError(), cu.cuStreamQuery(first) in (0, 600))
check(cu.cuCtxSynchronize())
print(runtime.cudaPeekAtLastError(), cu.cuStreamQuery(first), flush=True)
sys.exit(int(sys.argv[1]))
"#
);

/// A graph of two kernels and a memset, launched as often as the argument says.
pub(crate) const GRAPHS: &str = with_streams!(
    r#"
check(cu.cuStreamBeginCapture_v2(first, 0))
check(launch(gemm, 16, first))
check(cu.cuMemsetD32Async(memory, 7, c_size_t(64), first))
check(launch(softmax, 8, first))
graph = handle(lambda out: cu.cuStreamEndCapture(first, out))
executable = handle(cu.cuGraphInstantiateWithFlags, graph, ctypes.c_uint64(0))
for index in range(int(sys.argv[1])):
    check(cu.cuGraphLaunch(executable, first))
check(cu.cuCtxSynchronize())
"#
);
