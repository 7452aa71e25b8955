//! The table options that `sweep`, `plan` and `compare` share.

use super::failure::Failure;
use super::output;
use super::terminal;
use compare::{Format, Options, Sort, Styled};

#[derive(Debug, clap::Args)]
pub(super) struct TableArgs {
    /// Order of the rows within a group
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Compare the values of this swept key instead of the strategies
    #[arg(long, value_name = "AXIS")]
    by: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
    /// Table columns to show, in this order, such as memory,speed,loss
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = column)]
    columns: Option<Vec<String>>,
}

fn column(name: &str) -> Result<String, String> {
    compare::check_column(name).map(|()| name.to_owned()).map_err(|error| error.to_string())
}

impl TableArgs {
    pub(super) fn options(&self, baseline: Option<String>) -> Options {
        Options {
            baseline,
            by: self.by.clone(),
            sort: self.sort,
            columns: self.columns.clone(),
            width: terminal::width(),
            caution: None,
            pytorch: None,
        }
    }

    /// Whether the format is for programs, so that nothing else may be printed to standard output.
    pub(super) fn is_for_programs(&self) -> bool {
        matches!(self.format, Format::Csv | Format::Json)
    }
}

/// Writes a table to standard output, with colours on a terminal.
pub(super) fn print(table: &Styled) -> Result<(), Failure> {
    if !terminal::has_colours() {
        return output::print(&table.to_string());
    }
    let line = |(tone, line): &(_, String)| terminal::coloured(*tone, &output::visible(line)) + "\n";
    output::print_raw(&table.lines.iter().map(line).collect::<String>())
}
