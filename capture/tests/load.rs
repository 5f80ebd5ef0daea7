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
