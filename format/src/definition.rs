//! The definitions: what events refer to by id.
//!
//! Ids count from 1 in each table, in order of definition; 0 is "none". A definition says what a thing *is*
//! (a thread of a process with a number); what is learned of it later (its name) is a [`Property`], the last of
//! which wins. A stack is a tree node, so a stack of 80 frames that differs in its last line costs one row.

use std::hash::Hash;

use rustc_hash::FxHashMap;

use crate::catalog::Shelf;
use crate::table::{DefinitionKind as D, Predictor as P, Refers as R, Row, Table, tables};

pub use crate::codes::{api_domain, frame_kind, node_kind, vendor};

/// What a property is said of (`subject_kind`): a definition table's number, or one of these.
pub mod subject {
    /// The tape as a whole.
    pub const TAPE: u16 = 0;
}

/// The keys of the properties that this version reads. Others may be written and are shown as they are.
pub mod property {
    /// The name of a process, thread, stream, device; of a kernel one that was learned after its definition.
    pub const NAME: &str = "name";
    /// Where a kernel's name is from: `module`, `registration`, `stub`, `handle`, `symbol`, `scan`, `device` or `unresolved`.
    pub const NAME_SOURCE: &str = "name_source";
    /// A process's command line.
    pub const COMMAND: &str = "command";
    /// The container that a process is in, by its runtime's id.
    pub const CONTAINER: &str = "container";
    /// A process's Python, as `CPython 3.13.5 (free-threaded), /usr/bin/python3.13`, or why its stacks are not recorded.
    pub const PYTHON: &str = "python";
    /// Where a process's device times are from, as `CUPTI 130500, /path`, or why it has none.
    pub const DEVICE_TIME: &str = "device_time";
    /// What a library inside of a process took of it: a JSON object.
    pub const INSIDE_COST: &str = "inside_cost";
    /// A process's rank in a distributed job.
    pub const RANK: &str = "rank";
    /// How many ranks the job has.
    pub const WORLD_SIZE: &str = "world_size";
    /// Which file an imported process comes from.
    pub const SOURCE: &str = "source";
    /// A device's memory.
    pub const MEMORY_BYTES: &str = "memory_bytes";
    /// A device's compute capability, as `9.0`.
    pub const COMPUTE_CAPABILITY: &str = "compute_capability";
    /// A device's number of multiprocessors.
    pub const MULTIPROCESSORS: &str = "multiprocessors";
    /// Threads that one multiprocessor can hold.
    pub const THREADS_PER_MULTIPROCESSOR: &str = "threads_per_multiprocessor";
    /// Registers of one multiprocessor.
    pub const REGISTERS_PER_MULTIPROCESSOR: &str = "registers_per_multiprocessor";
    /// Shared memory of one multiprocessor.
    pub const SHARED_BYTES_PER_MULTIPROCESSOR: &str = "shared_bytes_per_multiprocessor";
    /// Threads of a warp.
    pub const WARP_SIZE: &str = "warp_size";
    /// Which build of a file a path (a string) means: the build id of the file as lower-case hexadecimal.
    pub const BUILD_ID: &str = "build_id";
    /// What a recorder cannot have seen: a JSON array of `kind`, `count` and `what`.
    pub const BLIND_SPOTS: &str = "blind_spots";
    /// What an importer saw and did not keep: a JSON object of description to count.
    pub const NOT_KEPT: &str = "not_kept";
    /// How many events of a rollup are in rows of their kind and function only, as there were too many different stacks.
    pub const ROLLED_UP_TOGETHER: &str = "rolled_up_together";
}

tables! {
    /// A function, operator or named range that a stack passes through, or a slice is.
    #[derive(Hash)]
    Frame / FrameTable, "frame" = D::Frame; {
        /// What it is.
        kind: u8 => P::Least, R::Code(frame_kind::NAMES);
        /// Its name.
        name: u32 => P::Previous, R::To(D::String);
        /// The file that it is in; 0 for none.
        file: u32 => P::Previous, R::To(D::String);
        /// The line on which it begins; 0 for not known.
        line: u32 => P::Least, R::Nothing;
    }

    /// A stack: this frame, called by the parent stack.
    #[derive(Hash)]
    Stack / StackTable, "stack" = D::Stack; {
        /// The caller; 0 at the root. Always smaller than the row's own id.
        parent: u32 => P::Previous, R::To(D::Stack);
        /// The function.
        frame: u32 => P::Previous, R::To(D::Frame);
        /// The line being executed; 0 for not known.
        line: u32 => P::Least, R::Nothing;
    }

    /// A kernel.
    #[derive(Hash)]
    KernelName / KernelNameTable, "kernel_name" = D::Kernel; {
        /// Its name as the source has it, mangled or not.
        name: u32 => P::Previous, R::To(D::String);
        /// The module or library it was loaded from; 0 for not known.
        module: u32 => P::Least, R::To(D::String);
    }

    /// What a launch asks for: a kernel and its configuration.
    #[derive(Hash)]
    Shape / ShapeTable, "shape" = D::Shape; {
        /// The kernel.
        kernel: u32 => P::Previous, R::To(D::Kernel);
        /// Blocks in x; 0 for not known.
        grid_x: u32 => P::Least, R::Nothing;
        /// Blocks in y.
        grid_y: u32 => P::Least, R::Nothing;
        /// Blocks in z.
        grid_z: u32 => P::Least, R::Nothing;
        /// Threads of a block in x; 0 for not known.
        block_x: u32 => P::Least, R::Nothing;
        /// Threads of a block in y.
        block_y: u32 => P::Least, R::Nothing;
        /// Threads of a block in z.
        block_z: u32 => P::Least, R::Nothing;
        /// Blocks of a cluster in x; 0 for no cluster.
        cluster_x: u32 => P::Least, R::Nothing;
        /// Blocks of a cluster in y.
        cluster_y: u32 => P::Least, R::Nothing;
        /// Blocks of a cluster in z.
        cluster_z: u32 => P::Least, R::Nothing;
        /// Shared memory of a block that the kernel declares.
        static_shared_bytes: u32 => P::Least, R::Nothing;
        /// Shared memory of a block that the launch asks for.
        dynamic_shared_bytes: u32 => P::Least, R::Nothing;
        /// Both together, where a source has only their sum; 0 where it tells them apart.
        shared_bytes: u32 => P::Least, R::Nothing;
        /// Registers of a thread; 0 for not known.
        registers: u32 => P::Least, R::Nothing;
        /// Local memory of a thread.
        local_bytes: u32 => P::Least, R::Nothing;
    }

    /// A function of an API.
    #[derive(Hash)]
    Function / FunctionTable, "function" = D::Function; {
        /// Its name.
        name: u32 => P::Previous, R::To(D::String);
        /// Which interface it belongs to.
        domain: u8 => P::Least, R::Code(api_domain::NAMES);
        /// CUPTI's callback id; 0 for not known.
        callback_id: u32 => P::Least, R::Nothing;
    }

    /// A process.
    #[derive(Hash)]
    Process / ProcessTable, "process" = D::Process; {
        /// Its number on its host. Negative for what a source invents (Kineto's "overhead" has −1).
        pid: i64 => P::Least, R::Nothing;
        /// When it started, on the tape's clock; 0 for not known. Tells processes with a reused pid apart.
        start_ns: i64 => P::Least, R::Nothing;
        /// The host's name; 0 for the tape's own.
        host: u32 => P::Least, R::To(D::String);
        /// The file it was imported from, which tells ranks with the same pid apart; 0 for none.
        source: u32 => P::Least, R::To(D::String);
    }

    /// A thread of a process.
    #[derive(Hash)]
    Thread / ThreadTable, "thread" = D::Thread; {
        /// The process.
        process: u32 => P::Least, R::To(D::Process);
        /// Its number.
        tid: i64 => P::Previous, R::Nothing;
    }

    /// A device. Its limits are properties.
    #[derive(Hash)]
    Device / DeviceTable, "device" = D::Device; {
        /// The process that numbers it so; 0 where the host does.
        process: u32 => P::Least, R::To(D::Process);
        /// Its number.
        index: u32 => P::Previous, R::Nothing;
        /// Who made it.
        vendor: u8 => P::Least, R::Code(vendor::NAMES);
        /// Its UUID; 0 for not known.
        uuid: u32 => P::Least, R::To(D::String);
    }

    /// A context of a process on a device.
    #[derive(Hash)]
    Context / ContextTable, "context" = D::Context; {
        /// The process.
        process: u32 => P::Least, R::To(D::Process);
        /// The device.
        device: u32 => P::Least, R::To(D::Device);
        /// The driver's number or handle.
        native: u64 => P::Least, R::Nothing;
    }

    /// A stream of a context.
    #[derive(Hash)]
    Stream / StreamTable, "stream" = D::Stream; {
        /// The context.
        context: u32 => P::Least, R::To(D::Context);
        /// The driver's number or handle.
        native: u64 => P::Least, R::Nothing;
        /// Its priority.
        priority: i32 => P::Least, R::Nothing;
        /// The flags it was created with.
        flags: u32 => P::Least, R::Nothing;
    }

    /// A graph.
    #[derive(Hash)]
    Graph / GraphTable, "graph" = D::Graph; {
        /// The process.
        process: u32 => P::Least, R::To(D::Process);
        /// The driver's number or handle.
        native: u64 => P::Least, R::Nothing;
        /// How many graphs of the process had this handle before, as far as that was seen.
        earlier: u32 => P::Least, R::Nothing;
    }

    /// A counter.
    #[derive(Hash)]
    CounterName / CounterNameTable, "counter_name" = D::Counter; {
        /// Its name.
        name: u32 => P::Least, R::To(D::String);
        /// Its unit.
        unit: u32 => P::Least, R::To(D::String);
        /// The process it belongs to; 0 for none.
        process: u32 => P::Least, R::To(D::Process);
        /// The device it belongs to; 0 for none.
        device: u32 => P::Least, R::To(D::Device);
    }

    /// Something known of a definition, or of the tape. The last row of a subject and key wins.
    #[derive(Hash)]
    Property / PropertyTable, "property" = D::Property; {
        /// The table of the subject, or [`subject::TAPE`].
        subject_kind: u16 => P::Least, R::Nothing;
        /// The subject's id, 0 for the tape.
        subject: u32 => P::Least, R::Nothing;
        /// What is known: see [`property`].
        key: u32 => P::Least, R::To(D::String);
        /// Its value.
        value: u32 => P::Previous, R::To(D::String);
    }

    /// A node of an executable graph: what each of its launches runs.
    #[derive(Hash)]
    GraphNode / GraphNodeTable, "graph_node" = D::GraphNode; {
        /// The graph.
        graph: u32 => P::Least, R::To(D::Graph);
        /// Its number in that graph, from 0, in the order in which nodes were added.
        index: u32 => P::Previous, R::Nothing;
        /// What it does.
        kind: u8 => P::Least, R::Code(node_kind::NAMES);
        /// Kernel, grid, block and memory; 0 unless it runs a kernel.
        shape: u32 => P::Least, R::To(D::Shape);
        /// What it copies, sets, allocates or frees.
        bytes: u64 => P::Least, R::Nothing;
        /// The call that added it: what was called while a stream was captured, or a graph built.
        function: u32 => P::Least, R::To(D::Function);
        /// Who called that.
        stack: u32 => P::Least, R::To(D::Stack);
        /// The graph that it is, for one that is a graph; 0 if that is not known.
        child: u32 => P::Least, R::To(D::Graph);
    }
}

impl Shape {
    /// All shared memory of a block.
    pub fn block_shared_bytes(&self) -> u64 {
        [self.static_shared_bytes, self.dynamic_shared_bytes, self.shared_bytes].map(u64::from).iter().sum()
    }
}

/// A row of a definition table.
pub trait Definition: Row + Eq + Hash {
    /// This kind's table among all of them.
    fn table(definitions: &Definitions) -> &Self::Table;
    /// This kind's table among all of them, to be written. Row 0 stands for id 1.
    fn table_mut(definitions: &mut Definitions) -> &mut Self::Table;
    /// This kind's part of an index.
    fn ids(index: &mut Index) -> &mut Ids<Self>;
    /// This kind's part of a catalog.
    fn shelf(shelves: &Shelves) -> &Shelf<Self>;
    /// This kind's part of a catalog, to be changed.
    fn shelf_mut(shelves: &mut Shelves) -> &mut Shelf<Self>;
}

/// Code that runs once for each definition kind except strings.
pub trait DefinitionVisitor {
    /// Why a visit failed.
    type Error;
    /// Called by [`visit_definitions`] with each kind, in the order of their numbers.
    fn visit<T: Definition>(&mut self) -> Result<(), Self::Error>;
}

macro_rules! definitions {
    ($($field:ident: $row:ident / $table:ident;)*) => {
        /// Everything that the events of a tape refer to, looked up by id.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Definitions {
            /// The strings: id 1 is the first.
            pub strings: Vec<Box<str>>,
            $( #[doc = concat!("All [`", stringify!($row), "`] rows; row 0 has id 1.")] pub $field: $table, )*
        }

        /// What has been defined already, so that the same thing gets the same id.
        #[derive(Debug, Default)]
        pub struct Index {
            strings: FxHashMap<Box<str>, u32>,
            string_count: u32,
            $( $field: Ids<$row>, )*
        }

        /// The rows of a [`Catalog`](crate::catalog::Catalog), by kind.
        #[derive(Debug, Default)]
        pub struct Shelves { $( $field: Shelf<$row>, )* }

        $(
            impl Eq for $row {}
            impl Definition for $row {
                fn table(definitions: &Definitions) -> &$table { &definitions.$field }
                fn table_mut(definitions: &mut Definitions) -> &mut $table { &mut definitions.$field }
                fn ids(index: &mut Index) -> &mut Ids<$row> { &mut index.$field }
                fn shelf(shelves: &Shelves) -> &Shelf<$row> { &shelves.$field }
                fn shelf_mut(shelves: &mut Shelves) -> &mut Shelf<$row> { &mut shelves.$field }
            }
        )*

        /// Runs `visitor` over all kinds except strings; stops at its first error.
        pub fn visit_definitions<V: DefinitionVisitor>(visitor: &mut V) -> Result<(), V::Error> {
            $( visitor.visit::<$row>()?; )*
            Ok(())
        }
    };
}

definitions! {
    frames: Frame / FrameTable;
    stacks: Stack / StackTable;
    kernels: KernelName / KernelNameTable;
    shapes: Shape / ShapeTable;
    functions: Function / FunctionTable;
    processes: Process / ProcessTable;
    threads: Thread / ThreadTable;
    devices: Device / DeviceTable;
    contexts: Context / ContextTable;
    streams: Stream / StreamTable;
    graphs: Graph / GraphTable;
    counters: CounterName / CounterNameTable;
    properties: Property / PropertyTable;
    graph_nodes: GraphNode / GraphNodeTable;
}

impl Definitions {
    /// The string with this id; empty for 0, and for an id whose definition was lost.
    pub fn string(&self, id: u32) -> &str {
        (id as usize).checked_sub(1).and_then(|row| self.strings.get(row)).map_or("", |string| string)
    }

    /// The definition with this id; `None` for 0, and for an id whose definition was lost.
    pub fn get<T: Definition>(&self, id: u32) -> Option<T> {
        let table = T::table(self);
        let row = (id as usize).checked_sub(1)?;
        (row < table.len()).then(|| table.row(row))
    }

    /// How many definitions there are, strings included.
    pub fn len(&self) -> usize {
        struct Count<'a>(&'a Definitions, usize);
        impl DefinitionVisitor for Count<'_> {
            type Error = std::convert::Infallible;
            fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
                self.1 += T::table(self.0).len();
                Ok(())
            }
        }
        let mut count = Count(self, self.strings.len());
        let Ok(()) = visit_definitions(&mut count);
        count.1
    }

    /// Moves all rows of `other` behind these, table by table.
    pub fn append(&mut self, other: &mut Definitions) {
        struct Append<'a>(&'a mut Definitions, &'a mut Definitions);
        impl DefinitionVisitor for Append<'_> {
            type Error = std::convert::Infallible;
            fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
                T::table_mut(self.0).append(T::table_mut(self.1));
                Ok(())
            }
        }
        self.strings.append(&mut other.strings);
        let Ok(()) = visit_definitions(&mut Append(self, other));
    }

    /// Removes all rows and keeps the memory for the next ones.
    pub fn clear(&mut self) {
        struct Clear<'a>(&'a mut Definitions);
        impl DefinitionVisitor for Clear<'_> {
            type Error = std::convert::Infallible;
            fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
                T::table_mut(self.0).clear();
                Ok(())
            }
        }
        self.strings.clear();
        let Ok(()) = visit_definitions(&mut Clear(self));
    }

    /// Whether nothing is defined.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The stacks of a stack's frames, innermost (the id itself) first, root last.
    ///
    /// A damaged tape may hold a parent that does not come before its child; the walk ends there.
    pub fn stack_nodes(&self, id: u32) -> impl Iterator<Item = (u32, Stack)> + '_ {
        let mut next = id;
        std::iter::from_fn(move || {
            let current = next;
            let stack: Stack = self.get(current)?;
            next = if stack.parent < current { stack.parent } else { 0 };
            Some((current, stack))
        })
    }

    /// The last value of a property, if there is one. Walks all properties: for reports, not for loops.
    pub fn property(&self, subject_kind: u16, subject: u32, key: &str) -> Option<&str> {
        self.properties_of(subject_kind, subject).filter(|(name, _)| *name == key).last().map(|(_, value)| value)
    }

    /// All properties of a subject in the order in which they were said.
    pub fn properties_of(&self, subject_kind: u16, subject: u32) -> impl Iterator<Item = (&str, &str)> + '_ {
        self.properties
            .rows()
            .filter(move |row| row.subject_kind == subject_kind && row.subject == subject)
            .map(|row| (self.string(row.key), self.string(row.value)))
    }

    /// The process of a thread; 0 for none.
    pub fn process_of_thread(&self, thread: u32) -> u32 {
        self.get::<Thread>(thread).map_or(0, |thread| thread.process)
    }

    /// The process of a stream; 0 for none.
    pub fn process_of_stream(&self, stream: u32) -> u32 {
        self.get::<Stream>(stream).and_then(|stream| self.get::<Context>(stream.context)).map_or(0, |c| c.process)
    }

    /// The device of a stream; 0 for none.
    pub fn device_of_stream(&self, stream: u32) -> u32 {
        self.get::<Stream>(stream).and_then(|stream| self.get::<Context>(stream.context)).map_or(0, |c| c.device)
    }

    /// The name of the kernel of a shape, as the source has it; empty for none.
    pub fn kernel_name(&self, shape: u32) -> &str {
        self.get::<Shape>(shape)
            .and_then(|shape| self.get::<KernelName>(shape.kernel))
            .map_or("", |kernel| self.string(kernel.name))
    }

    /// The name of an API function; empty for none.
    pub fn function_name(&self, function: u32) -> &str {
        self.get::<Function>(function).map_or("", |function| self.string(function.name))
    }
}

impl Index {
    /// The id of a string that is defined already. The empty string is 0.
    pub fn find_string(&self, string: &str) -> Option<u32> {
        if string.is_empty() { Some(0) } else { self.strings.get(string).copied() }
    }

    /// Gives a string the next id.
    pub fn add_string(&mut self, string: &str) -> u32 {
        self.string_count += 1;
        self.strings.insert(string.into(), self.string_count);
        self.string_count
    }

    /// The id of a row that is defined already. A property is so only while it is what was said last of its subject:
    /// said again after another value, it is a new row, so that the last row is the last word.
    pub fn find<T: Definition>(&mut self, row: &T) -> Option<u32> {
        let (subject, value) = subject_and_value(*row);
        let &(id, said) = T::ids(self).known.get(&subject)?;
        (said == value).then_some(id)
    }

    /// Gives a row the next id of its kind.
    pub fn add<T: Definition>(&mut self, row: T) -> u32 {
        let (subject, value) = subject_and_value(row);
        let ids = T::ids(self);
        ids.count += 1;
        ids.known.insert(subject, (ids.count, value));
        ids.count
    }
}

/// The ids given to rows of one kind.
#[derive(Debug)]
pub struct Ids<T> {
    /// By what a row says something of: the last id, and what was said. See [`subject_and_value`].
    known: FxHashMap<T, (u32, u64)>,
    count: u32,
}

impl<T> Default for Ids<T> {
    fn default() -> Ids<T> {
        Ids { known: FxHashMap::default(), count: 0 }
    }
}

/// A property without its value, by which the index knows it, and that value; any other row as it is, and 0.
fn subject_and_value<T: Definition>(mut row: T) -> (T, u64) {
    const VALUE: usize = 3;
    if T::KIND != Property::KIND {
        return (row, 0);
    }
    debug_assert_eq!(T::COLUMNS[VALUE].name, "value");
    let value = row.get(VALUE);
    row.set(VALUE, 0);
    (row, value)
}
