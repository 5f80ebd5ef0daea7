//! Where probes go, and how they get there.
//!
//! [`library`] finds the functions of an ELF file, [`site`] a place in each, by what [`execution`] knows of the kernel and [`trial`]
//! asks it. None of them touches a process.

use object::ReadRef;
use serde::Serialize;

pub mod closing;
pub mod code_page;
pub mod collectives;
pub mod execution;
pub mod functions;
pub mod graphs;
pub mod groups;
pub mod library;
pub mod site;
pub mod trial;

pub use execution::{Cost, Kernel};
use library::Library;

/// Why a file has no probe sites.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is no ELF file of 64 bits, or cut in its header.
    #[error("not an ELF file of 64 bits")]
    NotElf,
    /// It is for another machine.
    #[error("for another machine (e_machine {0}), not x86-64")]
    OtherMachine(u16),
    /// A part of it cannot be read.
    #[error("{0} cannot be read: the file is cut or broken")]
    Broken(&'static str),
    /// Its tables would not fit into memory.
    #[error("its tables of symbols are larger than any library's")]
    TooLarge,
}

/// Where in a library a probe goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Site {
    /// The function: of its names the first that was asked for.
    pub symbol: String,
    /// Its other names, those that were asked for first. One probe serves them all.
    pub aliases: Vec<String>,
    /// Where the function is, relative to the library's load address.
    pub address: u64,
    /// Where the probe goes: the kernel wants the place in the file.
    pub file_offset: u64,
    /// The same from the function's entry.
    pub offset_in_function: u64,
    /// The instruction there.
    pub instruction: String,
    /// What the probe costs there.
    pub cost: Cost,
    /// Why there.
    pub why: String,
}

/// A function where no probe can be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Its name.
    pub symbol: String,
    /// What is in the way.
    pub why: String,
}

/// What a library has of the functions that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sites {
    /// One for each function, by its place in the library.
    pub sites: Vec<Site>,
    /// Functions that it has but where no probe can be.
    pub refused: Vec<Refused>,
    /// Functions that it lacks.
    pub missing: Vec<String>,
}

/// Chooses the sites of these functions in a library.
pub fn sites<'data, 'n, R: ReadRef<'data>>(
    library: &Library<'data, R>,
    names: impl IntoIterator<Item = &'n str>,
    kernel: Kernel,
) -> Result<Sites, Error> {
    let functions = library.functions(names)?;
    let refused = functions.refused.into_iter().map(|(symbol, why)| Refused { symbol, why: why.to_owned() });
    let mut all = Sites { sites: Vec::new(), refused: refused.collect(), missing: functions.missing };
    for function in functions.found {
        let chosen = site::choose(library.code(&function)?, function.file_offset, kernel);
        let mut names = function.names.into_iter();
        let symbol = names.next().unwrap_or_default();
        match chosen {
            Err(why) => all.refused.push(Refused { symbol, why: why.to_owned() }),
            Ok(place) => all.sites.push(Site {
                symbol,
                aliases: names.chain(function.aliases).collect(),
                address: function.address,
                file_offset: function.file_offset + place.offset,
                offset_in_function: place.offset,
                instruction: place.instruction,
                cost: place.cost,
                why: place.why,
            }),
        }
    }
    Ok(all)
}
