//! Names of native frames, which a tape has as a file and a place in it: `libtorch.so+0x1f20`.
//!
//! They are looked up when a tape is read, in files of this machine: [`find`] has those of the right build, [`look_up`] what they
//! say of an address, and [`Timeline::name_native_frames`](crate::timeline::Timeline::name_native_frames) puts it into the stacks.
//! A file is believed by its build id alone: a name from another build would be a wrong one. Nothing is fetched from anywhere.

pub mod find;
pub mod look_up;

use std::fmt;
use std::path::PathBuf;

use ktape_format::definition::{Frame, Property, frame_kind, property};
use ktape_format::table::DefinitionKind;
use ktape_format::{Definitions, Table as _};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use self::find::{Folders, Module};

/// Where names of native frames are looked for.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Names of native frames")]
pub struct Symbols {
    /// Look for the files of native frames, or their debug files, in this folder: by name, by build id, or as
    /// .build-id/ab/cdef….debug. May be given several times. They are looked for where they were recorded, in
    /// /usr/lib/debug and in $DEBUGINFOD_CACHE_PATH too; a file counts if its build id is the recorded one
    #[arg(long = "symbols", value_name = "DIR")]
    pub folders: Vec<PathBuf>,
}

/// A function that an address is in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Function {
    /// Its name, readable.
    pub name: String,
    /// Its source file; empty for not known.
    pub file: String,
    /// The line there; 0 for not known.
    pub line: u32,
}

/// Functions by the id of the frame that is in them: the outermost first, then those that the compiler put into it.
pub type Named = FxHashMap<u32, Vec<Function>>;

/// Native frames that keep the place in the file for a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unnamed {
    /// How many.
    pub frames: usize,
    /// Of how many native frames with a file.
    pub of: usize,
    /// The files they are in.
    pub files: Vec<String>,
}

impl fmt::Display for Unnamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST_FILES: usize = 5;
        let name = |file: &String| file.rsplit('/').next().unwrap_or_default().to_owned();
        let names: Vec<String> = self.files.iter().take(MOST_FILES).map(name).collect();
        let more = if self.files.len() > MOST_FILES { ", …" } else { "" };
        write!(
            f,
            "{} of {} native frames have no name: no symbols of {}{more} for them are here; \
             --symbols DIR looks for these files, or their debug files, there too",
            self.frames,
            self.of,
            names.join(", "),
        )
    }
}

/// A place in a file.
struct Place {
    frame: u32,
    /// The string of the file.
    file: u32,
    address: u64,
}

/// The functions of a tape's native frames, as far as they are known here.
pub fn names(definitions: &Definitions, symbols: &Symbols) -> (Named, Unnamed) {
    let places = places(definitions);
    if places.is_empty() {
        return (Named::default(), Unnamed::default());
    }
    let mut addresses: FxHashMap<u32, Vec<u64>> = FxHashMap::default();
    for place in &places {
        addresses.entry(place.file).or_default().push(place.address);
    }
    let build_ids = build_ids(definitions);
    let folders = Folders::new(symbols);
    let mut files: Vec<(u32, Vec<u64>)> = addresses.into_iter().collect();
    files.sort_unstable_by_key(|(file, _)| *file);
    let found: FxHashMap<u32, FxHashMap<u64, Vec<Function>>> = files
        .into_par_iter()
        .filter_map(|(file, addresses)| {
            let module = Module::new(definitions.string(file), build_ids.get(&file)?)?;
            Some((file, look_up::functions(&folders.files(&module), addresses)))
        })
        .collect();
    let mut named = Named::default();
    let mut unnamed = Unnamed { of: places.len(), ..Unnamed::default() };
    for place in &places {
        match found.get(&place.file).and_then(|functions| functions.get(&place.address)) {
            Some(functions) => {
                named.insert(place.frame, functions.clone());
            }
            None => {
                unnamed.frames += 1;
                unnamed.files.push(definitions.string(place.file).to_owned());
            }
        }
    }
    unnamed.files.sort_unstable();
    unnamed.files.dedup();
    (named, unnamed)
}

/// The frames that have no more than a place.
fn places(definitions: &Definitions) -> Vec<Place> {
    let place = |(frame, row): (u32, Frame)| {
        let is_native = row.kind == frame_kind::NATIVE && row.file != 0 && row.line == 0;
        let (_, address) = definitions.string(row.name).rsplit_once("+0x").filter(|_| is_native)?;
        Some(Place { frame, file: row.file, address: u64::from_str_radix(address, 16).ok()? })
    };
    (1..).zip(definitions.frames.rows()).filter_map(place).collect()
}

/// The builds of the files that have one, by the string of their path.
fn build_ids(definitions: &Definitions) -> FxHashMap<u32, &str> {
    let is_one = |row: &Property| {
        row.subject_kind == DefinitionKind::String as u16 && definitions.string(row.key) == property::BUILD_ID
    };
    definitions.properties.rows().filter(is_one).map(|row| (row.subject, definitions.string(row.value))).collect()
}

#[cfg(test)]
mod tests;
