pub mod ranges;
