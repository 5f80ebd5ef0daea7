//! The eBPF programs tell to which call an announced number belongs, where that call's own record found no room.
//!
//! On functions of this process, as a ring buffer that is full is nothing that a target brings about at will.

use aya::maps::{MapData, RingBuf};
use ktape_capture::kernel::links::{Link, Program};
use ktape_capture::kernel::programs::{Kernel, Purpose};
use ktape_capture::probes::code_page::CodePage;
use ktape_capture::probes::functions;
use ktape_capture::target::libraries::open_path;
use ktape_ebpf::wire::{Call, Correlated, Plain as _, Target, kind};

/// The least that there is: some thirty calls.
const RING_BYTES: u32 = 4096;

/// What came of the two: when a call was entered, and what an announced number is not older than.
#[derive(Debug)]
enum Told {
    Call(u64),
    Number(u64),
}

fn told(ring: &mut RingBuf<MapData>) -> Vec<Told> {
    let mut told = Vec::new();
    while let Some(record) = ring.next() {
        match u16::from_ne_bytes([record[0], record[1]]).into() {
            kind::CALL | kind::STACK_CALL => told.push(Told::Call(Call::read(&record).expect("a call").time_ns)),
            kind::CORRELATED => told.push(Told::Number(Correlated::read(&record).expect("a number").time_ns)),
            // Threads of the test harness come and go.
            _ => {}
        }
    }
    told
}

#[test]
fn a_number_says_that_it_is_of_a_later_call_than_the_last_that_found_no_room() {
    if ktape_capture::privileges::demand().is_err() {
        eprintln!("SKIPPED: not root");
        return;
    }
    let functions = functions::all();
    let launch = functions.iter().position(|function| function.symbol == "cuLaunchKernel").expect("it") as u64;
    let (mut kernel, mut ring) =
        Kernel::load_for(&functions, RING_BYTES, Purpose { announced: true, ..Purpose::default() })
            .expect("the programs are loaded");
    const CALL: usize = 0;
    const ANNOUNCE: usize = 1;
    // SAFETY: push and pop of a register that a caller keeps leave all as it was.
    let page = unsafe { CodePage::new(&[&[0x55, 0x5d], &[0x55, 0x5d]]) }.expect("a page");
    for (function, program, cookie) in [(CALL, Program::Enter, launch), (ANNOUNCE, Program::Correlated, 0)] {
        let file_offset = CodePage::offset(function);
        let link = Link { program, symbol: "a function of the test's own", file_offset, cookie };
        let attached = kernel.attach(&[link], &open_path(page.file())).expect("the kernel takes it");
        assert_eq!(attached.refused, Vec::<String>::new());
    }
    kernel.set_target(std::process::id(), Target { generation: 1, ..Target::default() }).expect("there is room");

    page.call(ANNOUNCE);
    // More than there is room for; what is announced is shorter than a call, and finds some.
    (0..60).for_each(|_| page.call(CALL));
    page.call(ANNOUNCE);
    let full = told(&mut ring);
    assert!(matches!(full[..2], [Told::Number(0), Told::Call(_)]), "nothing was lost yet: {full:?}");
    let [.., Told::Call(last_ns), Told::Number(not_before_ns)] = full[..] else { panic!("{full:?}") };
    assert!(full.len() < 60 && not_before_ns > last_ns, "it is none of the calls that are there: {full:?}");

    page.call(CALL);
    page.call(ANNOUNCE);
    let [Told::Call(call_ns), Told::Number(not_before_ns)] = told(&mut ring)[..] else {
        panic!("a call, and its number")
    };
    assert!(not_before_ns <= call_ns, "{not_before_ns} {call_ns}");
}
