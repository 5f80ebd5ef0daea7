//! The interpreter of this process, by its file: what the recorder would find out too, but not before the first calls.

use std::ffi::{CStr, c_int, c_void};

use ktape_ebpf::inside::PythonEntry;
use ktape_ebpf::python::Interpreter;

/// The interpreter of one of these files that is loaded: a library's before the executable's, which may have been linked with
/// the interpreter's symbols all the same.
pub(crate) fn loaded(pythons: &[PythonEntry]) -> Option<Interpreter> {
    let mut search = Search { pythons, found: None };
    if !pythons.is_empty() {
        // SAFETY: the callback gets this search, and only while it is here.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    }
    search.found
}

struct Search<'a> {
    pythons: &'a [PythonEntry],
    found: Option<Interpreter>,
}

/// Looks at one loaded object; the executable comes first.
extern "C" fn look(object: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader's description of an object, whose name ends in a zero, and what `loaded` gave.
    let (name, base, search) =
        unsafe { (CStr::from_ptr((*object).dlpi_name), (*object).dlpi_addr, &mut *search.cast::<Search<'_>>()) };
    let path = if name.is_empty() { c"/proc/self/exe" } else { name };
    // SAFETY: the path ends in a zero, and the call fills in all of the structure or fails.
    let facts = unsafe {
        let mut facts = std::mem::zeroed::<libc::stat>();
        if libc::stat(path.as_ptr(), &raw mut facts) != 0 {
            return 0;
        }
        facts
    };
    let of_file = |entry: &&PythonEntry| (entry.device, entry.inode) == (facts.st_dev, facts.st_ino);
    if let Some(PythonEntry { interpreter, .. }) = search.pythons.iter().find(of_file) {
        search.found = Some(Interpreter { runtime: base.wrapping_add(interpreter.runtime), ..*interpreter });
    }
    0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn the_interpreter_of_a_loaded_file_is_where_that_is_loaded() {
        let facts = std::fs::metadata("/proc/self/exe").unwrap();
        // This function is where its file is loaded, and so much behind.
        let here = the_interpreter_of_a_loaded_file_is_where_that_is_loaded as *const () as u64;
        let entry = |device, inode, runtime| PythonEntry {
            device,
            inode,
            interpreter: Interpreter { runtime, ..Interpreter::default() },
        };
        let none = entry(facts.dev(), facts.ino() + 1, 1);
        let known = entry(facts.dev(), facts.ino(), 0);
        assert_eq!(loaded(&[]), None);
        assert_eq!(loaded(&[none]), None);
        let base = loaded(&[none, known]).unwrap().runtime;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let first = u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap();
        assert_eq!(base, first, "the executable is mapped lowest");
        assert!(base < here);
        // A library comes before it.
        let libc = maps.lines().find(|line| line.contains("/libc.so")).and_then(|line| line.split_whitespace().nth(5));
        let facts = std::fs::metadata(libc.unwrap()).unwrap();
        let library = entry(facts.dev(), facts.ino(), 8);
        assert!(loaded(&[known, library]).unwrap().runtime > base);
    }
}
