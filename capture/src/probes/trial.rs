//! Asks the running kernel what probes on `nop`s cost: by placing one and looking what became of it, not by its version.
//!
//! Two functions of a `nop` and a `ret` are put into a file in memory, mapped, probed with an event that nothing reads, and called.
//! A kernel that single-steps needs memory for the copied instruction and maps it as `[uprobes]`; one that puts a call there maps
//! `[uprobes-trampoline]`; one that emulates maps nothing. The mappings stay, one page each, with this process.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;

use aya_obj::generated::perf_event_attr;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::execution::{Cost, Kernel, NOP5};

const PAGE_BYTES: usize = 4096;
const RET: u8 = 0xc3;

/// Of `include/uapi/linux/perf_event.h`.
const PERF_FLAG_FD_CLOEXEC: u64 = 1 << 3;

/// `nop word [rax+rax*1+0]`: six bytes.
const LONG_NOP: [u8; 6] = [0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00];

impl Kernel {
    /// Places two probes into this process and finds out. Needs the right to place probes.
    pub fn ask() -> io::Result<Kernel> {
        // Once an instruction was single-stepped, the mapping is there for good and tells no more. So the one that may leave
        // no trace comes first, and one that is stepped answers for both: no kernel steps one and emulates the other.
        let nop5 = cost_of(&NOP5)?;
        let long_nop = if nop5 == Cost::Stepped { Cost::Stepped } else { cost_of(&LONG_NOP)? };
        Ok(Kernel { long_nop, nop5 })
    }
}

/// What a probe on this instruction costs, which must leave all registers as they are. One that is stepped is found out only
/// as the first of a process.
pub(super) fn cost_of(instruction: &[u8]) -> io::Result<Cost> {
    let stepped_before = mapped("[uprobes]")?;
    let file = File::from(memfd_create("ktape-probe-trial", MemfdFlags::CLOEXEC)?);
    let mut page = [RET; PAGE_BYTES];
    page[..instruction.len()].copy_from_slice(instruction);
    (&file).write_all(&page)?;
    let event = probe(&file, 0)?;
    // SAFETY: a new private mapping of a file of one page, which nothing else knows.
    let code =
        unsafe { mmap(ptr::null_mut(), PAGE_BYTES, ProtFlags::READ | ProtFlags::EXEC, MapFlags::PRIVATE, &file, 0)? };
    let optimised_before = mapped("[uprobes-trampoline]")?;
    // SAFETY: at its beginning is the instruction, which by the caller's word changes no register, and behind it `ret`.
    let function = unsafe { std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn()>(code) };
    function();
    function();
    let cost = match (mapped("[uprobes-trampoline]")?, mapped("[uprobes]")?) {
        (true, _) if !optimised_before => Cost::Optimised,
        (_, true) if !stepped_before => Cost::Stepped,
        (_, false) => Cost::Emulated,
        (_, true) => return Err(io::Error::other("an instruction was stepped before: nothing tells what happens now")),
    };
    drop(event);
    // SAFETY: the mapping made above; `function` is not called any more.
    unsafe { munmap(code, PAGE_BYTES)? };
    Ok(cost)
}

/// A probe for this process that only counts, at an offset of a file; it is gone when the descriptor is closed.
pub fn probe(file: &File, offset: u64) -> io::Result<OwnedFd> {
    let kind = fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let path = format!("/proc/self/fd/{}\0", file.as_raw_fd());
    // SAFETY: the structure is numbers only, and all zeros is what the kernel takes as "nothing asked".
    let mut attr = unsafe { std::mem::zeroed::<perf_event_attr>() };
    attr.type_ = kind.trim().parse().map_err(|_| io::Error::other("the kernel tells no number for uprobes"))?;
    attr.size = size_of::<perf_event_attr>() as u32;
    attr.__bindgen_anon_3.uprobe_path = path.as_ptr() as u64;
    attr.__bindgen_anon_4.probe_offset = offset;
    // SAFETY: the attributes and the path live until the call returns, and the kernel only reads them.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn mapped(name: &str) -> io::Result<bool> {
    Ok(fs::read_to_string("/proc/self/maps")?.lines().any(|line| line.ends_with(name)))
}
