//! How far a long command is, in bytes of what it reads; on a terminal only.

use std::io::{self, IsTerminal as _};

use indicatif::{ProgressBar, ProgressStyle};

/// A bar that begins with what is being done.
pub fn bar(doing: &'static str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes} of {total_bytes}");
    ProgressBar::no_length().with_style(style.expect("the template is right")).with_message(doing)
}
