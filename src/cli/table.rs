//! The table options that `sweep`, `plan`, `compare` and `report` share.

use super::failure::Failure;
use super::output;
use super::terminal;

use compare::{Format, Options, Sort, Styled};
use spec::nearest;

#[derive(Debug, clap::Args)]
pub(super) struct TableArgs {
    #[command(flatten)]
    layout: LayoutArgs,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
    /// Show what each key of a strategy contributes, from the rows of [sweep.ablate]
    #[arg(long, conflicts_with_all = ["by", "columns", "sort"])]
    ladder: bool,
}

/// Rows and columns of a table.
#[derive(Debug, clap::Args)]
pub(super) struct LayoutArgs {
    /// Order of the rows within a group
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Compare the values of this swept key instead of the strategies
    #[arg(long, value_name = "AXIS")]
    by: Option<String>,
    /// Table columns to show, in this order, such as memory,speed,loss
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = column)]
    columns: Option<Vec<String>>,
}

/// Names of columns in CSV files, and those of the same figures in tables.
const IN_FILES: [(&str, &[&str]); 11] = [
    ("memory", &["peak_bytes"]),
    ("reserved", &["reserved_peak_bytes"]),
    ("external", &["external_peak_bytes"]),
    ("torch", &["torch_peak_bytes"]),
    ("speed", &["tokens_per_s", "samples_per_s"]),
    ("step", &["step_ms_median"]),
    ("loss", &["loss_eval", "loss_last"]),
    ("fits", &["fits_micro_batch"]),
    ("host", &["host_reserved_peak_bytes"]),
    ("params", &["parameters"]),
    ("trained", &["trainable_parameters"]),
];

/// The columns of CSV files with the figure of this column of tables.
pub(super) fn in_files(name: &str) -> Option<&'static [&'static str]> {
    let name = match name {
        "tok/s" | "smp/s" => "speed",
        "B" | "KiB" | "MiB" | "GiB" => "memory",
        other => other,
    };
    IN_FILES.iter().find(|(own, _)| *own == name).map(|(_, names)| *names)
}

fn column(name: &str) -> Result<String, String> {
    if compare::check_column(name).is_ok() {
        return Ok(name.to_owned());
    }
    let lower = name.trim().to_lowercase();
    let known = compare::column_names();
    let in_file = IN_FILES.iter().find(|(_, names)| names.contains(&lower.as_str())).map(|(own, _)| *own);
    let is_list = lower.split([' ', ';', '\t']).filter(|name| known.contains(name)).count() > 1;
    let unit = || ["gib", "mib", "gb", "mb", "peak"].contains(&lower.as_str()).then_some("memory");
    let near = in_file.or_else(unit).or_else(|| nearest(&lower, &known));
    let advice = match near {
        _ if ["strategy", "point", "effects"].contains(&lower.as_str()) => {
            "every table shows it; leave it out".to_owned()
        }
        _ if is_list => "write commas between names, as in memory,speed".to_owned(),
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the columns are: {}", known.join(", ")),
    };
    Err(format!("unknown column `{name}`; {advice}"))
}

impl LayoutArgs {
    pub(super) fn options(&self, baseline: Option<String>) -> Options {
        Options {
            baseline,
            by: self.by.clone(),
            sort: self.sort,
            columns: self.columns.clone(),
            width: terminal::width(),
            caution: None,
            ranks_caution: None,
            pytorch: None,
            ladder: false,
        }
    }
}

impl TableArgs {
    pub(super) fn options(&self, baseline: Option<String>) -> Options {
        Options { ladder: self.ladder, ..self.layout.options(baseline) }
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
