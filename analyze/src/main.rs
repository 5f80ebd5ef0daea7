//! The `analyze` binary: see `commands`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ktape_analyze::commands::main()
}
