//! Many probes in one link: `uprobe_multi`, of Linux 6.6 and later.
//!
//! One system call sets all probes of a library, and closing one file takes them away: the kernel waits for running probes
//! once, not once for each. `aya` 0.14 has no such link, and loads no program for one, so that is done here: `aya-obj` links
//! the same object, against the maps that `aya` has made, and two calls of `bpf(2)` do the rest.

use std::collections::{HashMap, HashSet};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use aya_obj::generated::{BPF_F_UPROBE_MULTI_RETURN, bpf_attach_type, bpf_attr, bpf_cmd, bpf_prog_type};
use aya_obj::obj::Object;

use super::links::{Link, Program};
use super::programs::OBJECT;

/// The programs that go into libraries, loaded for such links.
pub(super) struct Multi {
    programs: Vec<(Program, OwnedFd)>,
}

impl Multi {
    /// Loads the programs against these maps, by name. `None` where the kernel has no such links.
    pub(super) fn load(maps: &HashMap<String, RawFd>, names: &[(Program, &str)]) -> Option<Multi> {
        let mut object = Object::parse(OBJECT).ok()?;
        // A callback of `bpf_loop` must be known to be a function, which is what the types are for.
        let types = object.fixup_and_sanitize_btf(aya::features().btf()?).ok()??.to_bytes();
        let types = load_types(&types).ok()?;
        let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        let object_maps = object.maps.clone();
        let relocated = object_maps.iter().filter_map(|(name, map)| Some((name.as_str(), *maps.get(name)?, map)));
        object.relocate_maps(relocated, &text).ok()?;
        object.relocate_calls(&text).ok()?;
        let programs: Option<Vec<_>> =
            names.iter().map(|&(which, name)| Some((which, load_program(&object, name, &types).ok()?))).collect();
        Some(Multi { programs: programs? })
    }

    /// Sets all probes of one program in a library.
    pub(super) fn attach(&self, which: Program, links: &[Link<'_>], library: &Path) -> io::Result<OwnedFd> {
        let path = c_string(library.as_os_str())?;
        let offsets: Vec<u64> = links.iter().map(|link| link.file_offset).collect();
        let cookies: Vec<u64> = links.iter().map(|link| link.cookie).collect();
        let program = self.programs.iter().find(|(known, _)| *known == which);
        let (_, program) = program.ok_or_else(|| io::Error::other("no such program"))?;
        let mut attr = zeroed();
        // SAFETY: the fields are of the union's member for this command; the slices and the path outlive the call.
        unsafe {
            let create = &mut attr.link_create;
            create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
            create.attach_type = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;
            let multi = &mut create.__bindgen_anon_3.uprobe_multi;
            multi.path = path.as_ptr() as u64;
            multi.offsets = offsets.as_ptr() as u64;
            multi.cookies = cookies.as_ptr() as u64;
            multi.cnt = links.len() as u32;
            multi.flags =
                if matches!(which, Program::Leave | Program::LeaveLaunch) { BPF_F_UPROBE_MULTI_RETURN } else { 0 };
        }
        bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr)
    }
}

fn load_types(types: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    // SAFETY: the fields are of the union's member for this command; the bytes outlive the call.
    unsafe {
        let load = &mut attr.__bindgen_anon_7;
        load.btf = types.as_ptr() as u64;
        load.btf_size = types.len() as u32;
    }
    bpf(bpf_cmd::BPF_BTF_LOAD, &mut attr)
}

fn load_program(object: &Object, name: &str, types: &OwnedFd) -> io::Result<OwnedFd> {
    let program = object.programs.get(name).ok_or_else(|| io::Error::other("no such program"))?;
    let function = object.functions.get(&program.function_key()).ok_or_else(|| io::Error::other("no such function"))?;
    let short_name = c_string(OsStr::new(&name[..name.len().min(15)]))?;
    let function_info = function.func_info.func_info_bytes();
    let mut attr = zeroed();
    // SAFETY: the fields are of the union's member for this command; what they point to outlives the call.
    unsafe {
        let load = &mut attr.__bindgen_anon_3;
        load.prog_type = bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32;
        load.expected_attach_type = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;
        load.insns = function.instructions.as_ptr() as u64;
        load.insn_cnt = function.instructions.len() as u32;
        load.license = program.license.as_ptr() as u64;
        load.prog_btf_fd = types.as_raw_fd() as u32;
        load.func_info = function_info.as_ptr() as u64;
        load.func_info_cnt = function.func_info.len() as u32;
        load.func_info_rec_size = function.func_info_rec_size as u32;
        for (into, byte) in load.prog_name.iter_mut().zip(short_name.as_bytes()) {
            *into = *byte as _;
        }
    }
    bpf(bpf_cmd::BPF_PROG_LOAD, &mut attr)
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| io::Error::other("a path with a zero byte"))
}

fn zeroed() -> bpf_attr {
    // SAFETY: a union of integers.
    unsafe { std::mem::zeroed() }
}

/// `bpf(2)`, of a command that gives a file.
fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the attribute is as long as is said, and what it points to is alive.
    let fd =
        unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_int, attr as *mut bpf_attr, size_of::<bpf_attr>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::kernel::programs::Kernel;
    use crate::probes::functions;

    /// The verifier goes through the entry's walk once (53,000 instructions), not once for each work space (211,000): it is what a recording waits
    /// for at its beginning.
    #[test]
    fn on_trial_the_verifier_is_soon_through_the_programs() {
        if crate::privileges::demand().is_err() {
            eprintln!("SKIPPED: not root");
            return;
        }
        let (mut kernel, _ring) = Kernel::load(&functions::all(), 1 << 20).expect("the programs are loaded");
        kernel.sample(1).expect("the sampler is loaded");
        let of_file = |path| {
            let facts = fs::read_to_string(path).ok()?;
            facts.lines().find_map(|line| line.strip_prefix("verified_insns:")?.trim().parse::<u64>().ok())
        };
        let files = fs::read_dir("/proc/self/fdinfo").expect("the files of this process");
        let verified: Vec<u64> = files.filter_map(|file| of_file(file.expect("a file").path())).collect();
        let Some(most) = verified.iter().max() else {
            eprintln!("SKIPPED: this kernel does not say what it verified");
            return;
        };
        assert!((1_000..100_000).contains(most), "{verified:?}");
    }
}
