//! What people are shown: demangled and shortened kernel names, frames as profilers print them.

use std::borrow::Cow;

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};
use ktape_format::Definitions;
use ktape_format::definition::{Frame, frame_kind};

/// The C++ name behind a mangled one; the name itself where it is not mangled or cannot be read.
///
/// Recursion is capped: kernel names come from strangers, and CUTLASS nests templates deeply.
pub fn demangled(name: &str) -> Cow<'_, str> {
    if !name.starts_with("_Z") {
        return Cow::Borrowed(name);
    }
    Symbol::new_with_options(name, &ParseOptions::default().recursion_limit(128))
        .ok()
        .and_then(|symbol| symbol.demangle_with_options(&DemangleOptions::new().recursion_limit(256)).ok())
        .map_or(Cow::Borrowed(name), Cow::Owned)
}

/// A kernel's name without return type, template arguments and parameters, as Nsight's "short name":
/// `void at::native::foo<4, bar>(int)` is `at::native::foo`.
pub fn short_kernel_name(name: &str) -> String {
    let name = demangled(name);
    let mut short = String::with_capacity(name.len().min(64));
    let mut depth = 0_usize;
    let mut rest: &str = &name;
    while let Some(c) = rest.chars().next() {
        if depth == 0 && rest.starts_with("(anonymous namespace)") {
            short.push_str("(anonymous namespace)");
            rest = &rest["(anonymous namespace)".len()..];
            continue;
        }
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            '(' if depth == 0 => break,
            ' ' if depth == 0 && short == "void" => short.clear(),
            _ if depth == 0 => short.push(c),
            _ => {}
        }
        rest = &rest[c.len_utf8()..];
    }
    let short = short.trim();
    if short.is_empty() { name.into_owned() } else { short.to_owned() }
}

/// A frame as py-spy and speedscope print it: `forward (model.py:42)`; an operator or range by its name alone.
pub fn frame_label(definitions: &Definitions, frame: u32) -> String {
    let Some(frame) = definitions.get::<Frame>(frame) else { return format!("[frame {frame} lost]") };
    let name = definitions.string(frame.name);
    match (frame.kind, definitions.string(frame.file)) {
        (frame_kind::PYTHON | frame_kind::NATIVE, file) if !file.is_empty() => match frame.line {
            0 => format!("{name} ({file})"),
            line => format!("{name} ({file}:{line})"),
        },
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names() {
        assert_eq!(
            short_kernel_name("void at::native::foo<4, bar<int>, std::array<char*, 2ul> >(int, char*)"),
            "at::native::foo"
        );
        assert_eq!(
            short_kernel_name("at::native::(anonymous namespace)::norm<float>(int)"),
            "at::native::(anonymous namespace)::norm"
        );
        assert_eq!(short_kernel_name("ampere_sgemm_128x64_nn"), "ampere_sgemm_128x64_nn");
        assert_eq!(short_kernel_name("_Z9my_kernelPfi"), "my_kernel");
        assert_eq!(short_kernel_name("_Znonsense"), "_Znonsense");
        assert_eq!(short_kernel_name("(weird)"), "(weird)");
    }
}
