//! Python stacks as the user sees them: equal to what Python itself says, read from outside.

mod found;
mod images;
mod interpreters;
mod lines;
mod live;
