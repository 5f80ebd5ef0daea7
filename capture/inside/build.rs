//! Says what the library is linked like.

fn main() {
    // It stays mapped whatever is closed: CUPTI, the driver and the C library hold pointers to its functions.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
