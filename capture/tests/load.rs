//! The programs pass the verifier.
#[test]
fn the_kernel_takes_the_programs() {
    let functions = ktape_capture::probes::functions::all();
    if let Err(error) = ktape_capture::kernel::programs::Kernel::load(&functions, 1 << 20) {
        panic!("{error}");
    }
}
