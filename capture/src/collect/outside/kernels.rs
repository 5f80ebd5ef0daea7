//! The kernels of a process, by handle.
//!
//! A handle's name is known where the call that handed it out was seen. Of one that was made before the recording began, the
//! runtime's launch around the driver's may tell: it is given the host stub, whose symbol is the kernel's name. Until then a
//! kernel is called by its handle, and when its name is learned, a property of that definition says it, so that launches of
//! before have it too.

use std::sync::Arc;

use ktape_ebpf::python::Memory as _;
use ktape_ebpf::wire::NAME_BYTES;
use ktape_format::Sink;
use ktape_format::definition::{KernelName, property};
use ktape_format::table::DefinitionKind;
use rustc_hash::FxHashMap;

use crate::python::memory::ProcessMemory;
use crate::target::symbols;

/// The kernels of a process.
pub(super) struct Kernels {
    pid: u32,
    by_handle: FxHashMap<u64, Kernel>,
    /// Names by host stub: as the runtime was told, else of its symbol; `None` for a stub without.
    by_stub: FxHashMap<u64, Option<Arc<str>>>,
}

#[derive(Clone, Copy)]
struct Kernel {
    /// Its definition.
    id: u32,
    is_named: bool,
}

impl Kernels {
    pub(super) fn new(pid: u32) -> Kernels {
        Kernels { pid, by_handle: FxHashMap::default(), by_stub: FxHashMap::default() }
    }

    /// The definition of a kernel; `stub` is the host stub of a runtime launch around this one.
    pub(super) fn id<S: Sink>(&mut self, handle: u64, stub: Option<u64>, sink: &mut S) -> Result<u32, S::Error> {
        if let Some(kernel) = self.by_handle.get(&handle)
            && (kernel.is_named || stub.is_none())
        {
            return Ok(kernel.id);
        }
        if let Some(name) = stub.and_then(|stub| self.name_of_stub(stub)) {
            return self.name(handle, &name, sink);
        }
        if let Some(kernel) = self.by_handle.get(&handle) {
            return Ok(kernel.id);
        }
        let name = sink.string(&format!("unknown kernel @{handle:#x} of process {}", self.pid))?;
        let id = sink.define(KernelName { name, module: 0 })?;
        self.by_handle.insert(handle, Kernel { id, is_named: false });
        Ok(id)
    }

    /// Learns a handle's name. The latest counts, as a handle may be used again for another kernel.
    pub(super) fn name<S: Sink>(&mut self, handle: u64, name: &str, sink: &mut S) -> Result<u32, S::Error> {
        let string = sink.string(name)?;
        let id = sink.define(KernelName { name: string, module: 0 })?;
        if let Some(before) = self.by_handle.insert(handle, Kernel { id, is_named: true })
            && !before.is_named
        {
            sink.property(DefinitionKind::Kernel as u16, before.id, property::NAME, name)?;
        }
        Ok(id)
    }

    /// Two handles are of one kernel.
    pub(super) fn same<S: Sink>(&mut self, new: u64, known: u64, sink: &mut S) -> Result<(), S::Error> {
        let id = self.id(known, None, sink)?;
        let is_named = self.by_handle.get(&known).is_some_and(|kernel| kernel.is_named);
        self.by_handle.insert(new, Kernel { id, is_named });
        Ok(())
    }

    /// A host stub has its kernel's mangled name, as nvcc makes it.
    fn name_of_stub(&mut self, stub: u64) -> Option<Arc<str>> {
        let look_up = || symbols::function_at(self.pid, stub).map(Arc::from);
        self.by_stub.entry(stub).or_insert_with(look_up).clone()
    }

    /// A kernel's name as a call had it; what the program in the kernel could not read, or not to its end, is read from the
    /// process. `None` if that cannot be either.
    pub(super) fn whole_name(&self, read: &[u8], address: u64) -> Option<String> {
        /// A hostile process must not have the recorder keep what it likes.
        const MOST_BYTES: usize = 64 << 10;
        let is_whole = !read.is_empty() && read.len() < NAME_BYTES - 1;
        if is_whole {
            return Some(String::from_utf8_lossy(read).into_owned());
        }
        let memory = ProcessMemory::open(self.pid).ok()?;
        let mut name = Vec::new();
        while name.len() < MOST_BYTES {
            // To the end of the page: behind it there may be nothing.
            let at = address.wrapping_add(name.len() as u64);
            let mut page = vec![0; 4096 - (at % 4096) as usize];
            if !memory.read(at, &mut page) {
                return None;
            }
            match page.iter().position(|&byte| byte == 0) {
                None => name.extend(page),
                Some(end) => {
                    name.extend(&page[..end]);
                    return Some(String::from_utf8_lossy(&name).into_owned()).filter(|name| !name.is_empty());
                }
            }
        }
        None
    }

    /// Learns the name of a host stub.
    pub(super) fn stub(&mut self, stub: u64, name: &str) {
        self.by_stub.insert(stub, Some(name.into()));
    }

    /// Learns that the runtime's handle stands for a host stub.
    pub(super) fn handle_of_stub(&mut self, handle: u64, stub: u64) {
        let name = self.name_of_stub(stub);
        self.by_stub.insert(handle, name);
    }
}
