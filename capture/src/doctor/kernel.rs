//! What the kernel can, and lets this process do: each thing is tried as the recorder would use it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use aya::maps::MapType;
use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported, is_map_supported};
use aya_obj::generated::{bpf_attach_type, bpf_attr, bpf_cmd, bpf_prog_type};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::system::uname;
use rustix::thread::{CapabilitySet, capabilities};

use super::{Check, Need};
use crate::privileges;
use crate::probes::{Kernel, trial};
use crate::target::process;

/// What came of the trials.
pub(super) struct Tried {
    pub(super) checks: Vec<Check>,
    pub(super) nops: Option<Kernel>,
}

const AS_ROOT: &str = "run as root (a container: privileged), or: setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_checkpoint_restore+ep capture";

/// Tries all.
pub(super) fn try_all() -> Tried {
    let helper = |helper| is_helper_supported(ProgramType::KProbe, helper).map_err(io::Error::other);
    let probe = trial_file().and_then(|file| trial::probe(&file, 0));
    let may_probe = probe.is_ok();
    let mut checks = vec![
        about(),
        held(),
        check(
            "bpf system call",
            Need::Recording,
            is_map_supported(MapType::Array).map_err(|error| error.io_error),
            ["a kernel with CONFIG_BPF_SYSCALL", AS_ROOT],
        ),
        check(
            "ring buffer",
            Need::Recording,
            is_map_supported(MapType::RingBuf).map_err(|error| error.io_error),
            ["a kernel from 5.8", AS_ROOT],
        ),
        check("uprobes", Need::Recording, probe.map(|_| true), ["a kernel with CONFIG_UPROBE_EVENTS", AS_ROOT]),
        check(
            "attach cookies",
            Need::Recording,
            helper(BpfHelper::BPF_FUNC_get_attach_cookie),
            ["a kernel from 5.15", AS_ROOT],
        ),
        check("bpf_loop", Need::Recording, helper(BpfHelper::BPF_FUNC_loop), ["a kernel from 5.17", AS_ROOT]),
        btf(),
        lockdown(),
        check("others' memory", Need::OthersProcesses, others_memory(), [AS_ROOT; 2]),
        check("one link for all probes", Need::Speed, multi_link(), ["a kernel from 6.6 attaches faster", AS_ROOT]),
    ];
    checks.retain(|check| !check.seen.is_empty());
    Tried { checks, nops: may_probe.then(Kernel::ask).and_then(Result::ok) }
}

/// What a trial came to. A refusal says nothing of whether the kernel could.
fn check(what: &'static str, need: Need, tried: io::Result<bool>, [newer, allowed]: [&'static str; 2]) -> Check {
    let (works, seen, fix) = match tried {
        Ok(true) => (Some(true), "works".to_owned(), None),
        Ok(false) => (Some(false), "this kernel has none".to_owned(), Some(newer)),
        Err(error) if is_refusal(&error) => (None, "not allowed".to_owned(), Some(allowed)),
        Err(error) => (Some(false), error.to_string(), Some(newer)),
    };
    Check { what, need, works, seen, fix }
}

fn is_refusal(error: &io::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let own = error.downcast_ref::<io::Error>();
        if own.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            return true;
        }
        cause = own.and_then(io::Error::get_ref).map(|inner| inner as _).or_else(|| error.source());
    }
    false
}

fn about() -> Check {
    let seen = format!("Linux {} {}", uname().release().to_string_lossy(), uname().machine().to_string_lossy());
    let works = cfg!(target_arch = "x86_64");
    Check {
        what: "kernel",
        need: Need::Recording,
        works: Some(works),
        seen,
        fix: (!works).then_some("an x86-64 machine"),
    }
}

/// What this process may, for the reader, and whether the recorder takes it for enough.
fn held() -> Check {
    let held = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let named = [
        ("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN),
        ("CAP_BPF", CapabilitySet::BPF),
        ("CAP_PERFMON", CapabilitySet::PERFMON),
        ("CAP_SYS_PTRACE", CapabilitySet::SYS_PTRACE),
    ];
    let names: Vec<&str> = named.iter().filter(|(_, one)| held.contains(*one)).map(|(name, _)| *name).collect();
    let setting = |path| fs::read_to_string(path).map_or("?".to_owned(), |text| text.trim().to_owned());
    let seen = format!(
        "uid {}, {}; unprivileged_bpf_disabled {}, perf_event_paranoid {}",
        rustix::process::geteuid().as_raw(),
        if names.is_empty() { "no capability that helps".to_owned() } else { names.join(" ") },
        setting("/proc/sys/kernel/unprivileged_bpf_disabled"),
        setting("/proc/sys/kernel/perf_event_paranoid"),
    );
    let enough = privileges::demand().is_ok();
    Check { what: "privileges", need: Need::Recording, works: Some(enough), seen, fix: (!enough).then_some(AS_ROOT) }
}

/// Where in a thread its thread pointer is, which Python's own state is found by, the kernel's types tell.
fn btf() -> Check {
    const FILE: &str = "/sys/kernel/btf/vmlinux";
    check("BTF", Need::Recording, File::open(FILE).map(|_| true), ["a kernel with CONFIG_DEBUG_INFO_BTF", AS_ROOT])
}

/// A kernel that is locked down for confidentiality lets no program read memory. Most have no such thing: then there is
/// nothing to say.
fn lockdown() -> Check {
    let levels = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    let works = !levels.contains("[confidentiality]");
    let fix = (!works).then_some("boot with lockdown=integrity");
    Check { what: "lockdown", need: Need::Recording, works: Some(works), seen: levels.trim().to_owned(), fix }
}

/// Whether another user's process can be looked into. Where there is none, as in a container, the capability has to do.
fn others_memory() -> io::Result<bool> {
    let ours = rustix::process::geteuid().as_raw();
    let is_others = |pid: &u32| fs::metadata(format!("/proc/{pid}")).is_ok_and(|facts| facts.uid() != ours);
    let mut refusal = None;
    for pid in process::all()?.into_iter().filter(is_others) {
        match File::open(format!("/proc/{pid}/mem")) {
            Ok(_) => return Ok(true),
            Err(error) => refusal = Some(error),
        }
    }
    let held = capabilities(None)?.effective.contains(CapabilitySet::SYS_PTRACE);
    match refusal {
        None if held => Ok(true),
        refusal => Err(refusal.unwrap_or_else(|| io::ErrorKind::PermissionDenied.into())),
    }
}

/// Attaches a program that does nothing by one link, as it is done to all functions of a library.
fn multi_link() -> io::Result<bool> {
    /// `r0 = 0; exit`.
    const NOTHING: [u64; 2] = [0xb7, 0x95];
    let file = trial_file()?;
    let path = format!("/proc/self/fd/{}\0", file.as_raw_fd());
    let offset = 0_u64;
    // SAFETY: the union is numbers only, and zeros are what the kernel takes as "nothing asked".
    let mut attr = unsafe { std::mem::zeroed::<bpf_attr>() };
    attr.__bindgen_anon_3.prog_type = bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32;
    attr.__bindgen_anon_3.insns = NOTHING.as_ptr() as u64;
    attr.__bindgen_anon_3.insn_cnt = NOTHING.len() as u32;
    attr.__bindgen_anon_3.license = c"GPL".as_ptr() as u64;
    attr.__bindgen_anon_3.expected_attach_type = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;
    let program = match bpf(bpf_cmd::BPF_PROG_LOAD, &attr) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(false),
        tried => tried?,
    };
    // SAFETY: as above.
    let mut attr = unsafe { std::mem::zeroed::<bpf_attr>() };
    attr.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd().cast_unsigned();
    attr.link_create.attach_type = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;
    // SAFETY: this member of the union is the one that the attach type chooses, and all of it is zeros so far.
    let multi = unsafe { &mut attr.link_create.__bindgen_anon_3.uprobe_multi };
    multi.path = path.as_ptr() as u64;
    multi.offsets = &raw const offset as u64;
    multi.cnt = 1;
    match bpf(bpf_cmd::BPF_LINK_CREATE, &attr) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        tried => tried.map(|_| true),
    }
}

/// The system call, for the two commands that make a descriptor.
fn bpf(command: bpf_cmd, attr: &bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: all that the attributes point to is the caller's, lives until the call returns and is only read.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command as u32, attr, size_of::<bpf_attr>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A file of one `ret`, for probes that are never hit.
fn trial_file() -> io::Result<File> {
    let mut file = File::from(memfd_create("ktape-doctor", MemfdFlags::CLOEXEC)?);
    file.write_all(&[0xc3; 4096])?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_found_beneath_other_errors() {
        let refusal = || io::Error::from_raw_os_error(libc::EPERM);
        assert!(is_refusal(&refusal()));
        assert!(is_refusal(&io::Error::other(refusal())));
        assert!(!is_refusal(&io::Error::from_raw_os_error(libc::EINVAL)));
    }

    #[test]
    fn a_trial_that_was_refused_says_nothing_of_the_kernel() {
        let refused = check("x", Need::Speed, Err(io::Error::from_raw_os_error(libc::EACCES)), ["newer", "allowed"]);
        assert_eq!((refused.works, refused.fix), (None, Some("allowed")));
        let missing = check("x", Need::Speed, Ok(false), ["newer", "allowed"]);
        assert_eq!((missing.works, missing.fix), (Some(false), Some("newer")));
    }
}
