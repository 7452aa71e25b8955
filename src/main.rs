//! `runner`: see `runner --help`. The crates that it is made of lie in the folders beside this file.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
