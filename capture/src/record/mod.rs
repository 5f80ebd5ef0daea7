//! Recording: which processes, onto which tape, from when to when. The recorder knows files and processes, not CUDA.

mod libraries;
mod losses;
mod node;
mod processes;
mod python;
pub mod scope;
pub mod session;
pub mod summary;
