//! `runner`: see `runner --help`. Its crates are in the folders beside this file.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
