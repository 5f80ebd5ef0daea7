//! The function at an address of a process, by the symbols of the file that is mapped there.

use std::fs::File;

use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, ReadCache};

use super::libraries::open_mapping;
use super::maps;

/// The name of the function that begins at this address; `None` where no file is mapped, or none of its symbols is there.
/// Reads all symbols of the file: to be asked once for each address.
pub fn function_at(pid: u32, address: u64) -> Option<String> {
    let mappings = maps::of(pid).ok()?;
    let mapping = mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&address))?;
    if !mapping.is_file() {
        return None;
    }
    let file = open_mapping(pid, mapping).ok()?;
    function_in(&file, address - mapping.start + mapping.file_offset)
}

/// The function that begins at this place of a file.
fn function_in(file: &File, file_offset: u64) -> Option<String> {
    let data = ReadCache::new(file.try_clone().ok()?);
    let object = object::File::parse(&data).ok()?;
    let segment = object.segments().find(|segment| {
        let (start, bytes) = segment.file_range();
        (start..start.saturating_add(bytes)).contains(&file_offset)
    })?;
    let address = segment.address().wrapping_add(file_offset - segment.file_range().0);
    let is_it = |symbol: &object::Symbol<'_, '_, _>| symbol.address() == address && symbol.is_definition();
    // Those for the dynamic linker are left in a stripped file.
    let symbol = object.symbols().find(is_it).or_else(|| object.dynamic_symbols().find(is_it))?;
    symbol.name().ok().filter(|name| !name.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[unsafe(no_mangle)]
    extern "C" fn ktape_test_of_symbols() {}

    #[test]
    fn functions_of_this_program_and_of_a_library_have_their_names() {
        let at = |address: usize| function_at(std::process::id(), address as u64);
        let own = ktape_test_of_symbols as extern "C" fn() as usize;
        assert_eq!(at(own).as_deref(), Some("ktape_test_of_symbols"));
        assert_eq!(at(own + 1), None);
        let stack = 0u8;
        assert_eq!(at(&raw const stack as usize), None);
        assert_eq!(at(8), None);
    }
}
