//! Recording: which processes, onto which tape, from when to when. The recorder knows files and processes, not CUDA.

mod losses;
pub mod session;
pub mod summary;
