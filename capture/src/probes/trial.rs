//! Asks the running kernel what probes on `nop`s cost: by placing one and looking what became of it, not by its version.
//!
//! Two functions of a `nop` and a `ret` are put into a file in memory, mapped, probed with events that nothing reads, and called.
//! A kernel that single-steps needs memory for the copied instruction and maps it as `[uprobes]`; one that puts a call there maps
//! `[uprobes-trampoline]`; one that emulates maps nothing. The mappings stay, one page each, with this process.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::{Mutex, PoisonError};

use aya_obj::generated::perf_event_attr;

use super::closing::close_soon;
use super::code_page::CodePage;
use super::execution::{Cost, Kernel, NOP5};

/// Of `include/uapi/linux/perf_event.h`.
const PERF_FLAG_FD_CLOEXEC: u64 = 1 << 3;

/// `nop word [rax+rax*1+0]`: six bytes.
const LONG_NOP: [u8; 6] = [0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00];

impl Kernel {
    /// Places two probes into this process and finds out. Needs the right to place probes. What was mapped then hides what
    /// would be mapped now, so the kernel is asked once.
    pub fn ask() -> io::Result<Kernel> {
        static ANSWER: Mutex<Option<Kernel>> = Mutex::new(None);
        let mut answer = ANSWER.lock().unwrap_or_else(PoisonError::into_inner);
        match *answer {
            Some(kernel) => Ok(kernel),
            None => Kernel::try_probes().inspect(|kernel| *answer = Some(*kernel)),
        }
    }

    fn try_probes() -> io::Result<Kernel> {
        // SAFETY: they do nothing.
        let page = unsafe { CodePage::new(&[&NOP5, &LONG_NOP])? };
        let events = [probe(page.file(), CodePage::offset(0))?, probe(page.file(), CodePage::offset(1))?];
        // Once an instruction was single-stepped, the mapping is there for good and tells no more. So the one that may leave
        // no trace comes first, and one that is stepped answers for both: no kernel steps one and emulates the other.
        let nop5 = cost_of(&page, 0)?;
        let long_nop = if nop5 == Cost::Stepped { Cost::Stepped } else { cost_of(&page, 1)? };
        close_soon(events.into());
        Ok(Kernel { long_nop, nop5 })
    }
}

/// What the probe at the beginning of a page's function costs. One that is stepped is found out only as the first of a process.
fn cost_of(page: &CodePage, function: usize) -> io::Result<Cost> {
    let stepped_before = mapped("[uprobes]")?;
    let optimised_before = mapped("[uprobes-trampoline]")?;
    page.call(function);
    page.call(function);
    let cost = match (mapped("[uprobes-trampoline]")?, mapped("[uprobes]")?) {
        (true, _) if !optimised_before => Cost::Optimised,
        (_, true) if !stepped_before => Cost::Stepped,
        (_, false) => Cost::Emulated,
        (_, true) => return Err(io::Error::other("an instruction was stepped before: nothing tells what happens now")),
    };
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

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write as _};
    use std::process::{Command, Stdio};

    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    const CODE: &str = "KTAPE_TRIAL_CODE";

    /// What [`super::execution`] knows of the kernel, held against the one that runs here: each instruction in a process of its
    /// own, which [`in_a_process_of_its_own`] is.
    #[test]
    fn the_kernel_does_what_we_think() {
        let kernel = match Kernel::ask() {
            Ok(kernel) => kernel,
            Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound) => {
                return writeln!(io::stderr(), "SKIPPED: no probe can be placed: {error}").expect("stderr is open");
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(Kernel::ask().expect("it answered before"), kernel);
        for code in [
            &[0x55, 0x5d][..],                                 // push rbp; pop rbp
            &[0x41, 0x57, 0x41, 0x5f],                         // push r15; pop r15
            &[0x54, 0x58],                                     // push rsp; pop rax
            &[0x40, 0x55, 0x5d],                               // push rbp with a prefix; pop rbp
            &[0x6a, 0x01, 0x58],                               // push 1; pop rax
            &[0xff, 0xf0, 0x58],                               // push rax in its long form; pop rax
            &[0x74, 0x00],                                     // je to the next
            &[0x0f, 0x85, 0, 0, 0, 0],                         // jne to the next
            &[0xeb, 0x00],                                     // jmp to the next
            &[0xe9, 0, 0, 0, 0],                               // the same, long
            &[0xe8, 1, 0, 0, 0, 0xc3],                         // call of the second ret
            &[0x90],                                           // nop
            &[0x66, 0x90],                                     // nop of two bytes
            &[0xf3, 0x90],                                     // pause
            &[0x0f, 0x1f, 0x00],                               // nop of three
            &NOP5,                                             // of five
            &LONG_NOP,                                         // of six
            &[0xf3, 0x0f, 0x1e, 0xfa],                         // endbr64
            &[0x31, 0xc0],                                     // xor eax, eax
            &[0x48, 0x83, 0xec, 0x18, 0x48, 0x83, 0xc4, 0x18], // sub rsp, 18h; add rsp, 18h
            &[0x81, 0x3d, 0, 0, 0, 0, 0x00, 0xba, 0x21, 0x03], // cmp of libcuda's trampolines, with itself
        ] {
            let instruction = Decoder::with_ip(64, code, 0, DecoderOptions::NONE).decode();
            let expected = kernel.cost(&instruction, &code[..instruction.len()], 0).map(Cost::name);
            let hex: String = code.iter().map(|byte| format!("{byte:02x}")).collect();
            let mut child = Command::new(std::env::current_exe().expect("our file"));
            child.args(["--exact", "probes::trial::tests::in_a_process_of_its_own", "--ignored", "--nocapture"]);
            let output = child.env(CODE, &hex).stderr(Stdio::inherit()).output().expect("the test runs");
            let output = String::from_utf8_lossy(&output.stdout).into_owned();
            let told = output.split_once("cost: ").and_then(|(_, behind)| behind.split_whitespace().next());
            assert_eq!(told, expected, "{hex} {instruction:?}: {output}");
        }
    }

    #[test]
    #[ignore = "the_kernel_does_what_we_think runs it, once for each instruction, in a process that nothing was stepped in"]
    fn in_a_process_of_its_own() {
        let hex = std::env::var(CODE).expect("the test above says which");
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
        let code: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        // SAFETY: the code is one of those above.
        let page = unsafe { CodePage::new(&[&code]).expect("a page") };
        let _event = probe(page.file(), CodePage::offset(0)).expect("a probe");
        println!("cost: {}", cost_of(&page, 0).expect("it is told").name());
    }
}
