//! The programs pass the verifier.
#[test]
fn the_kernel_takes_the_programs() {
    let functions = ktape_capture::probes::functions::all();
    let loaded = ktape_capture::kernel::programs::Kernel::load(&functions, 1 << 20);
    // The one that samples is loaded only where that is asked for.
    if let Err(error) = loaded.and_then(|(mut kernel, _ring)| kernel.sample(99)) {
        panic!("{error}");
    }
}

#[test]
fn who_hears_late_of_a_program_does_not_undo_what_is_known_of_the_next() {
    use ktape_ebpf::python::Interpreter;
    use ktape_ebpf::wire::Target;
    let functions = ktape_capture::probes::functions::all();
    let (mut kernel, _ring) = ktape_capture::kernel::programs::Kernel::load(&functions, 1 << 20).expect("it loads");
    // No process has such a number.
    let pid = u32::MAX - 1;
    let of = |runtime| Some(Interpreter { runtime, ..Interpreter::default() });
    kernel.set_target(pid, Target { generation: 2, ..Target::default() }).expect("a map");
    kernel.set_interpreter(pid, 2, of(0x2000)).expect("a map");
    for late in [of(0x1000), None] {
        kernel.set_interpreter(pid, 1, late).expect("a map");
        assert_eq!(kernel.interpreter(pid, 2), of(0x2000));
    }
    kernel.set_interpreter(pid, 2, None).expect("a map");
    assert_eq!(kernel.interpreter(pid, 2), None);
}
