//! `runner`: see `runner --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    runner::cli::main()
}
