//! What the library inside a process and the recorder share: the files of one directory, which both map.
//!
//! The recorder makes the directory, its [`Control`] page and the table of functions, and names it to the process in the
//! environment ([`DIRECTORY_VARIABLE`]). The library adds a [`ProcessPage`] and, for each thread that has something to tell, a
//! ring ([`ring`]). All files outlive the process: what it wrote before it was killed is read.
//!
//! Records are those of [`wire`](crate::wire), and some that only a process itself can know: they stand here. A record's first
//! word is its kind; kinds of both are numbered apart, so that one collector takes either.

use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::python::Interpreter;
pub use crate::wire::Correlated;
use crate::wire::{Plain, Plan};

pub mod ring;
pub mod scope;

/// The environment variable that names the directory.
pub const DIRECTORY_VARIABLE: &str = "KTAPE_INSIDE";
/// The file of the [`Control`] page.
pub const CONTROL_FILE: &str = "control";
/// The file of the table of [`FunctionEntry`]s.
pub const FUNCTIONS_FILE: &str = "functions";
/// The file of [`PythonEntry`]s; it ends with the last of them.
pub const PYTHONS_FILE: &str = "pythons";
/// How many of these there are at most.
pub const MOST_PYTHONS: usize = 64;
/// How the name of a process's page ends; before it stands the process's number.
pub const PROCESS_SUFFIX: &str = ".process";
/// How the name of a ring ends; before it stand the process's number, a dot, and a number that counts its rings.
pub const RING_SUFFIX: &str = ".ring";

/// The first word of every file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ktapeins");
/// Raised with every change of what stands here: a library and a recorder of different layouts have nothing to say to each other.
pub const LAYOUT: u32 = 3;

/// Where the device's times come from.
pub mod device_time {
    /// Nowhere: only the host's side is recorded.
    pub const OFF: u32 = 0;
    /// CUPTI's activity records.
    pub const CUPTI: u32 = 1;
    /// CUDA events around launches.
    pub const EVENTS: u32 = 2;
}

/// What the recorder wants: one page, of which only the last words change.
#[repr(C)]
pub struct Control {
    /// [`MAGIC`], stored last.
    pub magic: AtomicU64,
    /// [`LAYOUT`].
    pub layout: u32,
    /// See [`device_time`].
    pub device_time: u32,
    /// Whether calls are told, with their stacks. Not where eBPF programs see them already.
    pub calls: u32,
    /// Whether each call's correlation id is announced at the site that a probe is set to ([`Correlated`]).
    pub announce: u32,
    /// Whether children are recorded: else the library takes its variables out of their environment.
    pub follow: u32,
    /// How many bytes a thread's ring has: a power of two.
    pub ring_bytes: u32,
    /// How often what the device did is asked for, in milliseconds.
    pub flush_ms: u32,
    /// How many entries the table of functions has.
    pub functions: u32,
    /// The recorder, where only the command that it has begun is recorded: others that load the library, as they began before the command
    /// called the driver or got its variables in another way, are no children of the recorder's, and stay as they are. 0 where any
    /// process is recorded.
    pub parent: u32,
    /// A file of CUPTI to load instead of what is found, with a zero at its end; empty for none.
    pub cupti: [u8; 1024],
    /// Raised by the library whenever it has added a file.
    pub files: AtomicU64,
    /// Set by the recorder at its end. One that dies has not set it, but holds the file locked no more.
    pub ended: AtomicU32,
}

/// A function that is told of.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionEntry {
    /// Its symbol, with zeros behind it: what `cuptiGetCallbackName` calls it.
    pub symbol: [u8; 64],
    /// What is kept of its calls.
    pub plan: Plan,
    /// Its number in records.
    pub function: u32,
    /// Whether its calls' returns are told as well.
    pub returns: u32,
    /// Always 0.
    pub padding: u32,
}

/// The interpreter of each process that has this file loaded. The recorder looks for that of every process, but the first calls of one
/// would not wait.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonEntry {
    /// The file's device, as `stat` has it.
    pub device: u64,
    /// And its inode.
    pub inode: u64,
    /// Its `runtime` is counted from where the file is loaded.
    pub interpreter: Interpreter,
}

/// A process, and what the recorder found out about it.
#[repr(C)]
pub struct ProcessPage {
    /// [`MAGIC`], stored last.
    pub magic: AtomicU64,
    /// [`LAYOUT`].
    pub layout: u32,
    /// Its number, as it sees it.
    pub pid: u32,
    /// When it began to be recorded, on `CLOCK_MONOTONIC`: tells it from any other of that number.
    pub generation: u64,
    /// What it has to say about itself: one of [`state`].
    pub state: AtomicU32,
    /// The answer of CUPTI that a state is about; 0 for none.
    pub code: AtomicU32,
    /// The version that CUPTI says it is.
    pub cupti_version: AtomicU32,
    /// Odd while the recorder writes the interpreter, even else; 0 before there is one. The library writes the first, into a page that
    /// nobody knows of yet, if its file is in the table.
    pub interpreter_version: AtomicU32,
    /// Its Python.
    pub interpreter: core::cell::UnsafeCell<Interpreter>,
    /// What the state is about, with a zero at its end: CUPTI's file, or in words what failed.
    pub detail: core::cell::UnsafeCell<[u8; 1024]>,
    /// How long the program's threads have been in the library by now, as a sample of their calls says.
    pub own_ns: AtomicU64,
    /// How many calls these were: two for each of the driver's functions, where its return is told too.
    pub own_calls: AtomicU64,
    /// CPU time of the library's own thread.
    pub keeper_ns: AtomicU64,
    /// CPU time of the threads by which CUPTI hands over its buffers.
    pub cupti_threads_ns: AtomicU64,
    /// CPU time of the whole process since the library came: what the others are a share of.
    pub process_ns: AtomicU64,
    /// What CUPTI says of itself, by [`overhead`].
    pub overhead_ns: [AtomicU64; overhead::NAMES.len()],
    /// Launches that have had CUDA events around them.
    pub timed: AtomicU64,
    /// How long the program's threads took for these events, and for asking whether a launch gets them; but for those that took long.
    pub timed_ns: AtomicU64,
    /// Of these launches, those that took long: they made events, or the thread was interrupted.
    pub timed_long: AtomicU64,
    /// How long those took.
    pub timed_long_ns: AtomicU64,
    /// Launches that were not to be timed by CUDA events, by [`untimed`].
    pub untimed: [AtomicU64; untimed::NAMES.len()],
}

// SAFETY: who writes the cells when is said by the words before them.
unsafe impl Sync for ProcessPage {}

/// What became of a process's recording.
pub mod state {
    /// It has been loaded, and the driver is not initialised yet.
    pub const LOADED: u32 = 1;
    /// It records what was asked for.
    pub const RECORDING: u32 = 2;
    /// CUPTI is not to be found; `detail` says where it was looked for.
    pub const NO_CUPTI: u32 = 3;
    /// CUPTI refuses: `code` is its answer, `detail` to what.
    pub const REFUSED: u32 = 4;
    /// Another client of CUPTI is in the process: it has the right of way.
    pub const OTHER_CLIENT: u32 = 5;
    /// It stopped, as the recorder is gone.
    pub const QUIET: u32 = 6;
    /// It failed within itself; `detail` says how.
    pub const FAILED: u32 = 7;
    /// It stopped, and left CUPTI's kinds of activity enabled: another client came later, and they may be its own.
    /// `detail` is CUPTI's file.
    pub const LEFT_ENABLED: u32 = 8;
    /// CUDA events were to be put around launches, and the library is not preloaded: it meets none.
    pub const NOT_PRELOADED: u32 = 9;
}

/// Why launches have no CUDA events around them, although nothing is missing.
pub mod untimed {
    /// Their stream was captured: nothing ran.
    pub const CAPTURED: usize = 0;
    /// They launched a graph.
    pub const GRAPH: usize = 1;
    /// Nobody asked for them.
    pub const OUT_OF_SCOPE: usize = 2;
    /// What they are called, by number.
    pub const NAMES: [&str; 3] = ["captured", "graph", "out_of_scope"];
}

/// What CUPTI or the driver took time for: `CUpti_ActivityOverheadKind`.
pub mod overhead {
    /// What they are called, by [`index`].
    pub const NAMES: [&str; 10] = [
        "other",
        "driver compiler",
        "buffer flush",
        "instrumentation",
        "resource",
        "module loading",
        "lazy function loading",
        "command buffer full",
        "buffer request",
        "UVM activity init",
    ];

    /// The place of one of CUPTI's numbers. These count in the upper half, but for the driver's compiler, which is 1.
    pub const fn index(kind: u32) -> usize {
        match kind {
            1 => 1,
            _ if kind & 0xffff == 0 && kind >> 16 < NAMES.len() as u32 - 1 && kind != 0 => (kind >> 16) as usize + 1,
            _ => 0,
        }
    }

    /// Whether it is what the driver does without CUPTI too.
    pub const fn is_of_driver(index: usize) -> bool {
        matches!(index, 1 | 5 | 6 | 7)
    }
}

/// Kinds of records that only the library makes.
pub mod kind {
    pub use crate::wire::kind::CORRELATED;
    /// [`super::Text`]
    pub const TEXT: u32 = 33;
    /// [`super::KernelRan`]
    pub const KERNEL_RAN: u32 = 34;
    /// [`super::CopyRan`]
    pub const COPY_RAN: u32 = 35;
    /// [`super::SetRan`]
    pub const SET_RAN: u32 = 36;
    /// [`super::FunctionName`]
    pub const FUNCTION_NAME: u32 = 37;
    /// [`super::RangeTold`]
    pub const RANGE: u32 = 38;
    /// [`super::Clocks`]
    pub const CLOCKS: u32 = 39;
    /// [`super::Missing`]
    pub const MISSING: u32 = 40;
    /// A [`super::Ran`] and no more: a kernel, as CUDA events around its launch have it. Device, context and stream are 0, as its
    /// launch says them.
    pub const KERNEL_TIMED: u32 = 41;
}

/// A text that records of the same ring refer to by its id. `bytes` bytes follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    /// `kind::TEXT`
    pub kind: u32,
    /// Counts from 1, in each ring.
    pub id: u32,
    /// How long it is.
    pub bytes: u64,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
}

/// Where and when the device did something: what its three kinds of records begin with.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// One of [`kind`].
    pub kind: u32,
    /// CUPTI's id of the call that caused it.
    pub correlation: u32,
    /// The process in the upper half, the thread that tells it in the lower.
    pub pid_tid: u64,
    /// When it began, on `CLOCK_MONOTONIC`; where CUPTI has no time for it, when it was told.
    pub start_ns: u64,
    /// When it ended; 0 where CUPTI has no time for it.
    pub end_ns: u64,
    /// CUPTI's number of the device.
    pub device: u32,
    /// And of the context.
    pub context: u32,
    /// And of the stream.
    pub stream: u32,
    /// The graph, where it is a node of one: CUPTI's number of the executable graph; 0 for none.
    pub graph: u32,
    /// The node, by CUPTI's number; 0 for none.
    pub graph_node: u64,
}

impl Ran {
    /// What it counts under (see [`ring`]): its end, as [`tally::KERNEL`](crate::wire::tally::KERNEL) says.
    #[inline(always)]
    pub fn counted_ns(&self) -> u64 {
        self.start_ns.max(self.end_ns)
    }
}

/// The device ran a kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelRan {
    /// What all have.
    pub ran: Ran,
    /// Its mangled name: a [`Text`]'s id.
    pub name: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Shared memory of a block that the kernel declares.
    pub static_shared_bytes: u32,
    /// Shared memory of a block that the launch adds.
    pub dynamic_shared_bytes: u32,
    /// Local memory of a thread.
    pub local_bytes: u32,
    /// Always 0.
    pub padding: u32,
}

/// The device copied.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyRan {
    /// What all have.
    pub ran: Ran,
    /// How much.
    pub bytes: u64,
    /// `CUpti_ActivityMemcpyKind`.
    pub copy: u32,
    /// `CUpti_ActivityMemoryKind` of the source in the lower half, of the target in the upper.
    pub memory: u32,
    /// The device on the other side, one more than CUPTI's number; 0 for none.
    pub peer: u32,
    /// Always 0.
    pub padding: u32,
}

/// The device set memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetRan {
    /// What all have.
    pub ran: Ran,
    /// How much.
    pub bytes: u64,
    /// To what.
    pub value: u32,
    /// `CUpti_ActivityMemoryKind` of the target.
    pub memory: u32,
}

/// A kernel's name by its handle, before the first call that has it. `bytes` bytes follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionName {
    /// `kind::FUNCTION_NAME`
    pub kind: u32,
    /// How long the name is.
    pub bytes: u32,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
    /// The `CUfunction`.
    pub handle: u64,
}

/// A range or mark of NVTX.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeTold {
    /// `kind::RANGE`
    pub kind: u32,
    /// See [`range`].
    pub what: u32,
    /// When, on `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
    /// Of a range that is started and ended: which. Of one that is pushed or popped: the how manieth word of this thread's about
    /// such it is, so that one that is missing is noticed.
    pub id: u64,
    /// The domain's name: a [`Text`]'s id; 0 for the default domain.
    pub domain: u32,
    /// What it says: a [`Text`]'s id; 0 where it says nothing.
    pub name: u32,
    /// The hash of the Python stack; 0 for none.
    pub stack: u64,
    /// A number that the program gave with it.
    pub payload: u64,
    /// What that is: see [`payload`].
    pub payload_type: u32,
    /// Always 0.
    pub padding: u32,
}

/// What the number given with a range is: `nvtxPayloadType_t`.
pub mod payload {
    /// There is none.
    pub const NONE: u32 = 0;
    /// 64 bits without a sign.
    pub const U64: u32 = 1;
    /// With a sign.
    pub const I64: u32 = 2;
    /// A double.
    pub const F64: u32 = 3;
    /// The lower 32 bits, without a sign.
    pub const U32: u32 = 4;
    /// With a sign.
    pub const I32: u32 = 5;
    /// A float.
    pub const F32: u32 = 6;
}

/// What is told of a range.
pub mod range {
    /// Pushed.
    pub const PUSH: u32 = 1;
    /// Popped.
    pub const POP: u32 = 2;
    /// Started: it may end on another thread.
    pub const START: u32 = 3;
    /// Ended.
    pub const END: u32 = 4;
    /// A mark.
    pub const MARK: u32 = 5;
}

/// Clocks read together: CUPTI's where that does not take ours, or a device's.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// `kind::CLOCKS`
    pub kind: u32,
    /// The device whose clock it is, one more than its number; 0: CUPTI's clock.
    pub device: u32,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
    /// `CLOCK_MONOTONIC`, in the middle between two readings.
    pub monotonic_ns: u64,
    /// What the other clock said between them.
    pub other_ns: u64,
    /// How far apart the two were.
    pub uncertainty_ns: u64,
}

/// Records of CUPTI's that there are not.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// `kind::MISSING`
    pub kind: u32,
    /// Why: see [`missing`].
    pub why: u32,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
    /// Since when they may be missing, on `CLOCK_MONOTONIC`.
    pub since_ns: u64,
    /// Until when.
    pub until_ns: u64,
    /// How many.
    pub count: u64,
}

/// Why records are missing.
pub mod missing {
    /// CUPTI dropped them, and says how many.
    pub const DROPPED: u32 = 1;
    /// They ended before they began.
    pub const BACKWARDS: u32 = 2;
    /// Of a kind that was not asked for, or is not known.
    pub const UNKNOWN_KIND: u32 = 3;
    /// The buffer could not be read to its end.
    pub const UNREADABLE: u32 = 4;
    /// No CUDA event was free for a launch: too many were under way.
    pub const NO_EVENT: u32 = 5;
    /// An event could not be made, recorded or read.
    pub const EVENT_FAILED: u32 = 6;
    /// The context ended, or the recording, before the kernel was seen to have.
    pub const CUT_OFF: u32 = 7;
    /// How many there are.
    pub const COUNT: usize = 8;
}

macro_rules! plain {
    ($($record:ty),*) => { $(
        // SAFETY: integers and arrays of integers, in an order that needs no padding.
        unsafe impl Plain for $record {}
    )* };
}
plain!(FunctionEntry, PythonEntry, Text, Ran, KernelRan, CopyRan, SetRan, FunctionName, RangeTold, Clocks, Missing);

const _: () = assert!(size_of::<Control>() <= 4096 && size_of::<ProcessPage>() <= 4096);
const _: () = assert!(size_of::<FunctionEntry>() == 112 && size_of::<PythonEntry>() == 16 + size_of::<Interpreter>());
const _: () = assert!(size_of::<Ran>() == 56 && size_of::<KernelRan>() == 104);
