//! `runner compare`: which strategy to use.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::compare::{self, Format, Options, Sort};
use crate::results::csv;

/// Compares the strategies in CSVs of results
#[derive(Debug, clap::Args)]
pub struct Args {
    /// CSVs that `runner sweep` wrote
    #[arg(required = true, value_name = "FILE.csv")]
    files: Vec<PathBuf>,
    /// The strategy that ratios are against [default: the first one]
    #[arg(long, value_name = "NAME")]
    baseline: Option<String>,
    /// Order of the rows within a group
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Put the values of this swept key beside each other instead of the strategies
    #[arg(long, value_name = "AXIS", conflicts_with = "baseline")]
    by: Option<String>,
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Args {
    /// Prints the comparison, or one line that says why there is none.
    pub fn run(self) -> ExitCode {
        match self.report() {
            Ok(report) => match io::stdout().write_all(report.as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                // The reader, `head` for example, has seen enough.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
                Err(error) => fail(&format!("cannot print: {error}")),
            },
            Err(problem) => fail(&problem),
        }
    }

    fn report(&self) -> Result<String, String> {
        let mut rows = Vec::new();
        for file in &self.files {
            let more = csv::read(file).map_err(|error| error.to_string())?;
            if more.is_empty() {
                return Err(format!("{} holds no rows: no run has finished yet", file.display()));
            }
            rows.extend(more);
        }
        let options = Options { baseline: self.baseline.clone(), by: self.by.clone(), sort: self.sort };
        compare::render(&rows, &options, self.format).map_err(|error| error.to_string())
    }
}

fn fail(problem: &str) -> ExitCode {
    // Nobody is left to tell when standard error is closed too.
    let _ = writeln!(io::stderr(), "error: {problem}");
    ExitCode::from(2)
}
