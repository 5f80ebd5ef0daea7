//! What Kineto packs into names: file and line of a Python function, addresses of objects, direction of a copy.

use std::borrow::Cow;

use ktape_format::event::{copy_kind, memory_kind};

use crate::timeline::names::without_addresses;

/// A Python function's name, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PythonName<'a> {
    /// The function; for builtins and modules the whole name.
    pub(super) name: Cow<'a, str>,
    /// The file; empty for builtins and modules.
    pub(super) file: &'a str,
    /// The line: where the function begins, or in a call stack where it was.
    pub(super) line: u32,
    /// How many addresses of objects were cut out of it.
    pub(super) addresses: u64,
}

/// Takes `torch/nn/modules/linear.py(114): forward` apart, VizTracer's `forward (linear.py:114)` and XLA's
/// `$linear.py:114 forward`; anything else (`nn.Module: Linear_3`,
/// `<built-in method to of Tensor object at 0x7ce2…>`) is a name without a file.
pub(super) fn python_name(text: &str) -> PythonName<'_> {
    if let Some((file, line, name)) = file_line_function(text).or_else(|| function_file_line(text)) {
        return PythonName { name: Cow::Borrowed(name), file, line, addresses: 0 };
    }
    let (name, addresses) = without_addresses(text);
    PythonName { name, file: "", line: 0, addresses }
}

fn file_line_function(text: &str) -> Option<(&str, u32, &str)> {
    let mut from = 0;
    while let Some(close) = text[from..].find("): ").map(|at| at + from) {
        if let Some((file, line)) = text[..close].rsplit_once('(')
            && !file.is_empty()
            && let Ok(line) = line.parse()
        {
            return Some((file, line, &text[close + 3..]));
        }
        from = close + 3;
    }
    None
}

fn function_file_line(text: &str) -> Option<(&str, u32, &str)> {
    let (place, name) = match text.strip_prefix('$') {
        Some(rest) => rest.split_once(' ')?,
        None => {
            let (name, place) = text.strip_suffix(')')?.rsplit_once(" (")?;
            (place, name)
        }
    };
    let (file, line) = place.rsplit_once(':')?;
    let line = line.parse().ok().filter(|_| !file.is_empty())?;
    Some((file, line, name))
}

/// The direction of a copy by its short name (`HtoD`), as in names and in ROCm's `kind`.
pub(super) fn copy_kind_of(text: &str) -> Option<u8> {
    let code = copy_kind::NAMES.iter().position(|name| *name == text)?;
    (code != usize::from(copy_kind::UNKNOWN)).then_some(code as u8)
}

/// The direction and the two memory kinds of `Memcpy HtoD (Pinned -> Device)`; unknown where it does not say.
pub(super) fn copy_name(text: &str) -> (u8, u8, u8) {
    let kind = text.split(' ').find_map(copy_kind_of).unwrap_or(copy_kind::UNKNOWN);
    let (source, target) = in_parentheses(text).and_then(|inside| inside.split_once(" -> ")).unwrap_or(("", ""));
    (kind, memory_kind_of(source), memory_kind_of(target))
}

/// The memory kind of `Memset (Device)`.
pub(super) fn memset_name(text: &str) -> u8 {
    memory_kind_of(in_parentheses(text).unwrap_or(""))
}

fn in_parentheses(text: &str) -> Option<&str> {
    Some(text.split_once('(')?.1.rsplit_once(')')?.0)
}

fn memory_kind_of(text: &str) -> u8 {
    memory_kind::NAMES.iter().position(|name| *name == text).map_or(memory_kind::UNKNOWN, |code| code as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(text: &str) -> (String, &str, u32, u64) {
        let PythonName { name, file, line, addresses } = python_name(text);
        (name.into_owned(), file, line, addresses)
    }

    #[test]
    fn python_functions() {
        assert_eq!(
            parts("torch/nn/modules/linear.py(114): forward"),
            ("forward".into(), "torch/nn/modules/linear.py", 114, 0)
        );
        assert_eq!(parts("<string>(2): __init__"), ("__init__".into(), "<string>", 2, 0));
        assert_eq!(parts("C:\\a (x): b\\f.py(7): g"), ("g".into(), "C:\\a (x): b\\f.py", 7, 0));
        assert_eq!(parts("f (a b/c.py:6)"), ("f".into(), "a b/c.py", 6, 0));
        assert_eq!(parts("$api.py:120 jit"), ("jit".into(), "api.py", 120, 0));
        assert_eq!(parts("f (x)"), ("f (x)".into(), "", 0, 0));
        assert_eq!(parts("nn.Module: Linear_3"), ("nn.Module: Linear_3".into(), "", 0, 0));
        assert_eq!(parts("<built-in function isinstance>"), ("<built-in function isinstance>".into(), "", 0, 0));
    }

    #[test]
    fn addresses_are_cut_and_counted() {
        assert_eq!(
            parts("<built-in method to of Tensor object at 0x7ce2AF0>"),
            ("<built-in method to of Tensor object>".into(), "", 0, 1)
        );
        assert_eq!(parts("<a at 0x1 of <b at 0x2>>"), ("<a of <b>>".into(), "", 0, 2));
    }

    #[test]
    fn copies_and_memsets() {
        assert_eq!(
            copy_name("Memcpy HtoD (Pinned -> Device)"),
            (copy_kind::HTOD, memory_kind::PINNED, memory_kind::DEVICE)
        );
        // ROCm says Host without saying whether it is pinned.
        assert_eq!(
            copy_name("Memcpy DtoH (Device -> Host)"),
            (copy_kind::DTOH, memory_kind::DEVICE, memory_kind::UNKNOWN)
        );
        assert_eq!(copy_name("CopyHostToDevice"), (copy_kind::UNKNOWN, 0, 0));
        assert_eq!(copy_name("Memcpy unknown (Unknown -> Device)"), (copy_kind::UNKNOWN, 0, memory_kind::DEVICE));
        assert_eq!(memset_name("Memset (Device)"), memory_kind::DEVICE);
        assert_eq!(memset_name("Memset (Unknown)"), memory_kind::UNKNOWN);
        assert_eq!(memset_name("Memset"), memory_kind::UNKNOWN);
    }

    proptest! {
        #[test]
        fn any_name_is_survived(text in "[ -~(): at0x]*") {
            let _ = (python_name(&text), copy_name(&text), memset_name(&text));
        }
    }
}
