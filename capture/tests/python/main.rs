//! Python stacks as the user sees them: equal to what Python itself says, read from outside.

mod found;
mod image;
mod images;
mod inside;
mod interpreters;
mod lines;
mod live;

/// Says that a test is skipped, and why.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}
