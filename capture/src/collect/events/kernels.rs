//! The kernels of a process, by handle.
//!
//! A handle's name is known where the call that handed it out was seen. Of one that was made before the recording began, the
//! runtime's launch around the driver's tells: it is given the host stub, or a handle that the stub keeps, and which kernel
//! that is stands in the code of the program's files ([`crate::target::stubs`]). The driver's own objects may tell the rest
//! ([`super::opaque`]). Until something does, a kernel is called by its handle, and when its name is learned, a property of
//! that definition says it, so that launches of before have it too. Where a name is from is kept with it: [`Source`].

use std::cell::RefCell;
use std::hash::BuildHasher as _;
use std::rc::Rc;
use std::sync::Arc;

use ktape_ebpf::python::Memory as _;
use ktape_ebpf::wire::NAME_BYTES;
use ktape_format::Sink;
use ktape_format::definition::{KernelName, property};
use ktape_format::table::DefinitionKind;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use serde::Serialize;

use super::{LaunchScope, MOST_KEPT, opaque};
use crate::probes::functions::ObjectKind as Kind;
use crate::python::memory::ProcessMemory;
use crate::target::stubs::live::Found;
use crate::target::symbols;

/// Where a kernel's name is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The call that handed out its handle, by this name.
    Module,
    /// The program's word to the runtime, as it was seen.
    Registration,
    /// The code of that word, in a file of a process that had said it before.
    Stub,
    /// The same, of the stub that keeps the runtime's handle.
    Handle,
    /// The symbol of its host stub.
    Symbol,
    /// The driver's object.
    Scan,
    /// CUPTI, in the process itself.
    Device,
    /// Nowhere: it is called by its handle.
    Unresolved,
}

impl Source {
    /// As the tape has it.
    pub fn name(self) -> &'static str {
        match self {
            Source::Module => "module",
            Source::Registration => "registration",
            Source::Stub => "stub",
            Source::Handle => "handle",
            Source::Symbol => "symbol",
            Source::Scan => "scan",
            Source::Device => "device",
            Source::Unresolved => "unresolved",
        }
    }
}

/// What is known of the objects of a build of the driver, which its processes share.
pub(super) type Objects = Rc<RefCell<opaque::Objects>>;

/// The kernels of a process.
pub(in super::super) struct Kernels {
    pid: u32,
    /// The definition of what was launched last; 0 for nothing yet.
    pub(super) last: u32,
    /// Whether all handles there are have been seen to be handed out.
    is_new: bool,
    by_handle: FxHashMap<u64, Kernel>,
    /// Names by host stub, and by the runtime's handle; `None` for one without.
    by_stub: FxHashMap<u64, Option<(Arc<str>, Source)>>,
    /// Variables that will hold the runtime's handle for a stub, and the stub.
    unfilled: Vec<(u64, u64)>,
    objects: Objects,
    /// Where the names of the definitions are from, and the hash of each name.
    sources: FxHashMap<u32, (u64, Source)>,
    /// How often kernels were launched whose definition has no name yet.
    unnamed: FxHashMap<u32, u64>,
    /// The same of kernels whose handles were forgotten.
    unnamed_before: u64,
    scope: Rc<LaunchScope>,
    /// Definitions of kernels that are not in it.
    left_out: FxHashSet<u32>,
    /// Handles of launched ones that are not, and those that came to them, or went, since it was asked last.
    left_out_handles: FxHashSet<u64>,
    scope_changes: Vec<(u64, bool)>,
}

#[derive(Clone, Copy)]
struct Kernel {
    /// Its definition.
    id: u32,
    source: Source,
    /// What was known of the driver's objects when they did not tell its name.
    asked: u64,
}

impl Kernels {
    pub(super) fn new(pid: u32, is_new: bool, scope: Rc<LaunchScope>) -> Kernels {
        Kernels {
            pid,
            last: 0,
            is_new,
            by_handle: FxHashMap::default(),
            by_stub: FxHashMap::default(),
            unfilled: Vec::new(),
            objects: Objects::default(),
            sources: FxHashMap::default(),
            unnamed: FxHashMap::default(),
            unnamed_before: 0,
            scope,
            left_out: FxHashSet::default(),
            left_out_handles: FxHashSet::default(),
            scope_changes: Vec::new(),
        }
    }

    /// Whether launches of a kernel are out of scope, by its definition.
    pub(super) fn is_left_out(&self, id: u32) -> bool {
        self.left_out.contains(&id)
    }

    /// Learns what is launched by a handle.
    pub(super) fn note_scope(&mut self, handle: u64, id: u32) {
        if !self.scope.is_by_kernel() {
            return;
        }
        let is_left_out = self.is_left_out(id);
        let is_change = match is_left_out {
            true => self.left_out_handles.len() < MOST_KEPT && self.left_out_handles.insert(handle),
            false => self.left_out_handles.remove(&handle),
        };
        if is_change {
            self.scope_changes.push((handle, is_left_out));
        }
    }

    /// Handles whose launches are out of scope, or are no longer, since this was asked last.
    pub(super) fn take_scope_changes(&mut self) -> impl Iterator<Item = (u64, bool)> + '_ {
        self.scope_changes.drain(..)
    }

    /// Counts a launch of this definition, if that has no name.
    pub(super) fn launched(&mut self, id: u32) {
        self.last = id;
        if let Some(launches) = self.unnamed.get_mut(&id) {
            *launches += 1;
        }
    }

    /// How many launches are of kernels without a name.
    pub(super) fn unnamed_launches(&self) -> u64 {
        self.unnamed_before + self.unnamed.values().sum::<u64>()
    }

    /// Learns which build of the driver the process runs.
    pub(super) fn set_objects(&mut self, objects: &Objects) {
        if !Rc::ptr_eq(&self.objects, objects) {
            self.objects = objects.clone();
        }
    }

    /// The definitions of all handles.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_handle.values().map(|kernel| kernel.id)
    }

    /// Where the names of the kernels that this process has used are from, by the hash of the name.
    pub(super) fn sources(self) -> impl Iterator<Item = (u64, Source)> {
        self.sources.into_values()
    }

    /// The definition of a kernel; `stub` is the host stub of a runtime launch around this one.
    pub(super) fn id<S: Sink>(&mut self, handle: u64, stub: Option<u64>, sink: &mut S) -> Result<u32, S::Error> {
        let known = self.by_handle.get(&handle).copied();
        if let Some(kernel) = known
            && kernel.source != Source::Unresolved
        {
            return Ok(kernel.id);
        }
        if let Some((name, source)) = stub.and_then(|stub| self.name_of_stub(stub)) {
            let id = self.name(handle, &name, source, sink)?;
            // A symbol is the host's name, which may be another than the device's.
            if source != Source::Symbol {
                self.sample(Kind::Function, handle, &name, sink)?;
            }
            return Ok(id);
        }
        let version = self.objects.borrow().version();
        if let Some(kernel) = known
            && kernel.asked == version
        {
            return Ok(kernel.id);
        }
        if let Some(name) = self.scan(handle) {
            return self.name(handle, &name, Source::Scan, sink);
        }
        let id = match known {
            Some(kernel) => kernel.id,
            None => {
                let name = sink.string(&self.unknown(handle))?;
                sink.define(KernelName { name, module: 0 })?
            }
        };
        self.make_room();
        self.by_handle.insert(handle, Kernel { id, source: Source::Unresolved, asked: version });
        self.unnamed.entry(id).or_default();
        self.say_source(id, &self.unknown(handle), Source::Unresolved, sink)?;
        Ok(id)
    }

    /// What a kernel without a name is called.
    fn unknown(&self, handle: u64) -> String {
        format!("unknown kernel @{handle:#x} of process {}", self.pid)
    }

    /// Forgets all handles when there are too many: most of them were given back long ago, and are learned again if not.
    fn make_room(&mut self) {
        if self.by_handle.len() >= MOST_KEPT {
            self.by_handle.clear();
            self.is_new = false;
            self.unnamed_before += self.unnamed.drain().map(|(_, launches)| launches).sum::<u64>();
            self.left_out.clear();
        }
    }

    /// Learns a handle's name from the call that hands it out.
    pub(super) fn handed_out<S: Sink>(
        &mut self,
        kind: Kind,
        handle: u64,
        name: &str,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        self.name(handle, name, Source::Module, sink)?;
        self.sample(kind, handle, name, sink)
    }

    /// Learns a handle's name from the process itself, if that is not the one that it has: the handle may be another kernel's by now.
    pub(super) fn told<S: Sink>(&mut self, handle: u64, name: &str, sink: &mut S) -> Result<(), S::Error> {
        let string = sink.string(name)?;
        let id = sink.define(KernelName { name: string, module: 0 })?;
        let is_known = self.by_handle.get(&handle).is_some_and(|kernel| kernel.id == id);
        if is_known { Ok(()) } else { self.name(handle, name, Source::Device, sink).map(|_| ()) }
    }

    /// Learns a handle's name. The latest counts, as a handle may be used again for another kernel.
    fn name<S: Sink>(&mut self, handle: u64, name: &str, source: Source, sink: &mut S) -> Result<u32, S::Error> {
        let string = sink.string(name)?;
        let id = sink.define(KernelName { name: string, module: 0 })?;
        self.say_source(id, name, source, sink)?;
        self.make_room();
        if !self.scope.has_kernel(name) {
            self.left_out.insert(id);
        }
        if let Some(before) = self.by_handle.insert(handle, Kernel { id, source, asked: 0 })
            && before.source == Source::Unresolved
        {
            sink.property(DefinitionKind::Kernel as u16, before.id, property::NAME, name)?;
            self.say_source(before.id, name, source, sink)?;
            // It is the same kernel.
            self.sources.remove(&before.id);
            self.unnamed.remove(&before.id);
        }
        Ok(id)
    }

    /// Learns from the device the name of a launch's kernel, by its definition. Nothing where that has a name.
    pub(in super::super) fn named_by_device<S: Sink>(
        &mut self,
        id: u32,
        name: &str,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        if !self.unnamed.contains_key(&id) {
            return Ok(());
        }
        let handle = self.by_handle.iter().find(|(_, kernel)| kernel.id == id).map(|(&handle, _)| handle);
        handle.map_or(Ok(()), |handle| self.name(handle, name, Source::Device, sink).map(|_| ()))
    }

    fn say_source<S: Sink>(&mut self, id: u32, name: &str, source: Source, sink: &mut S) -> Result<(), S::Error> {
        let said = (FxBuildHasher.hash_one(name), source);
        if self.sources.len() >= MOST_KEPT {
            self.sources.clear();
        }
        if self.sources.insert(id, said) == Some(said) {
            return Ok(());
        }
        sink.property(DefinitionKind::Kernel as u16, id, property::NAME_SOURCE, source.name())
    }

    /// Two handles are of one kernel.
    pub(super) fn same<S: Sink>(&mut self, new: u64, known: u64, sink: &mut S) -> Result<(), S::Error> {
        self.id(known, None, sink)?;
        let Some(&kernel) = self.by_handle.get(&known) else { return Ok(()) };
        self.by_handle.insert(new, kernel);
        Ok(())
    }

    /// Lets the driver's object tell where it has its name, if there can be objects whose names are not known.
    fn sample<S: Sink>(&mut self, kind: Kind, handle: u64, name: &str, sink: &mut S) -> Result<(), S::Error> {
        if self.is_new {
            return Ok(());
        }
        let Ok(memory) = ProcessMemory::open(self.pid) else { return Ok(()) };
        let before = self.objects.borrow().version();
        self.objects.borrow_mut().sample(&memory, kind, handle, name);
        let now = self.objects.borrow().version();
        if now != before {
            let is_unknown = |(_, kernel): &(&u64, &Kernel)| kernel.source == Source::Unresolved;
            let mut unknown: Vec<u64> = self.by_handle.iter().filter(is_unknown).map(|(&handle, _)| handle).collect();
            unknown.sort_unstable();
            for handle in unknown {
                self.id(handle, None, sink)?;
            }
        }
        Ok(())
    }

    /// A handle's name as the driver's object has it.
    fn scan(&self, handle: u64) -> Option<String> {
        let objects = self.objects.borrow();
        if self.is_new || objects.version() == 0 {
            return None;
        }
        objects.name(&ProcessMemory::open(self.pid).ok()?, handle)
    }

    /// Learns what the process's files tell of its host stubs.
    pub(super) fn learn_stubs(&mut self, found: Found) {
        let name = |(stub, name)| (stub, Some((name, Source::Stub)));
        self.by_stub.extend(found.named.into_iter().map(name));
        self.unfilled = found.handles;
        self.unfilled.sort_unstable();
        self.read_handles();
    }

    /// Reads the variables that held no handle yet.
    fn read_handles(&mut self) {
        /// They lie close together, thousands of them.
        const READ_BYTES: u64 = 64 << 10;
        let Ok(memory) = ProcessMemory::open(self.pid) else { return };
        let unfilled = std::mem::take(&mut self.unfilled);
        let mut left = unfilled.as_slice();
        while let Some(&(begin, _)) = left.first() {
            let count = left.partition_point(|(at, _)| at - begin < READ_BYTES);
            let (near, rest) = left.split_at(count);
            left = rest;
            let mut bytes = vec![0; (near[near.len() - 1].0 - begin + 8) as usize];
            // One that was unmapped meanwhile has none.
            if !memory.read(begin, &mut bytes) {
                continue;
            }
            for &(at, stub) in near {
                let word = bytes[(at - begin) as usize..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
                match word {
                    0 => self.unfilled.push((at, stub)),
                    handle => self.handle_of_stub(handle, stub),
                }
            }
        }
    }

    /// The name of what the runtime launches: a host stub, or its own handle.
    fn name_of_stub(&mut self, stub: u64) -> Option<(Arc<str>, Source)> {
        if let Some(known) = self.by_stub.get(&stub) {
            return known.clone();
        }
        self.read_handles();
        // A host stub has its kernel's mangled name, as nvcc mostly makes it.
        let look_up = || symbols::function_at(self.pid, stub).map(|name| (name.into(), Source::Symbol));
        self.by_stub.entry(stub).or_insert_with(look_up).clone()
    }

    /// A kernel's name as a call had it; what the program in the kernel could not read, or not to its end, is read from the
    /// process. `None` if that cannot be either.
    pub(super) fn whole_name(&self, read: &[u8], address: u64) -> Option<String> {
        let is_whole = !read.is_empty() && read.len() < NAME_BYTES - 1;
        if is_whole {
            return Some(String::from_utf8_lossy(read).into_owned());
        }
        opaque::text_at(&ProcessMemory::open(self.pid).ok()?, address)
    }

    /// Learns the name of a host stub.
    pub(super) fn stub(&mut self, stub: u64, name: &str) {
        self.by_stub.insert(stub, Some((name.into(), Source::Registration)));
    }

    /// Learns that the runtime's handle stands for a host stub.
    pub(super) fn handle_of_stub(&mut self, handle: u64, stub: u64) {
        let known = self.by_stub.get(&stub).cloned();
        let name = known.unwrap_or_else(|| {
            let symbol = symbols::function_at(self.pid, stub).map(|name| (name.into(), Source::Symbol));
            self.by_stub.insert(stub, symbol.clone());
            symbol
        });
        let by_handle = |(name, source)| (name, if source == Source::Symbol { source } else { Source::Handle });
        self.by_stub.insert(handle, name.map(by_handle));
    }
}
