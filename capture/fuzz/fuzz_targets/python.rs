//! A process's memory with Python in it, of which any words are any others: the walk, the lists and the names of it end
//! within so many reads.
#![no_main]

#[path = "../../tests/python/image.rs"]
#[expect(dead_code, reason = "images are made by the tests")]
mod image;

use std::sync::LazyLock;

use image::{IMAGES, Image};
use ktape_ebpf::python::Interpreter;
use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;

// An image counts its reads, and so is of one thread; what is shared is what it is made of.
static WHOLE: LazyLock<Vec<(Vec<(u64, Vec<u8>)>, Interpreter)>> = LazyLock::new(|| {
    let load = |version: &&str| {
        let (image, interpreter, _) = Image::load::<IgnoredAny>(version);
        (image.ranges.into_iter().collect(), interpreter)
    };
    IMAGES.iter().map(load).collect()
});

fuzz_target!(|bytes: &[u8]| {
    let [which, rest @ ..] = bytes else { return };
    let (ranges, interpreter) = &WHOLE[usize::from(*which) % IMAGES.len()];
    let mut image = Image { ranges: ranges.iter().cloned().collect(), ..Image::default() };
    // Which range, which word of it, what becomes of it.
    for &[range_low, range_high, at_low, at_high, kind, value @ ..] in rest.as_chunks::<13>().0 {
        let number = |low, high| u64::from(u16::from_le_bytes([low, high]));
        image.damage(number(range_low, range_high), number(at_low, at_high), kind.into(), u64::from_le_bytes(value));
    }
    image.go_through(interpreter);
});
