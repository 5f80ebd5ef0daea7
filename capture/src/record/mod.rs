//! Recording: which processes, onto which tape, from when to when. The recorder knows files and processes, not CUDA.

pub mod blind_spots;
pub mod cost;
mod governor;
mod libraries;
mod losses;
mod processes;
mod python;
pub mod session;
pub mod summary;
mod tally;
