//! The `capture` binary: see `commands`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ktape_capture::commands::main()
}
