//! Recording: which processes, onto which tape, from when to when. The recorder knows files and processes, not CUDA.

pub mod alone;
pub mod blind_spots;
mod clocks;
pub mod cost;
mod files;
mod folder;
mod governor;
pub mod inside;
mod keeper;
mod libraries;
mod listed;
mod losses;
mod node;
pub mod output;
mod processes;
mod python;
pub mod scope;
pub mod segments;
pub mod session;
pub mod summary;
mod tally;
mod troubles;
mod waiting;
