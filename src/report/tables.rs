//! The tables of an experiment: comparison, effects, machines, commands.

use serde::{Serialize, Serializer};

use base::units::Bytes;
use compare::{Cell, Compared, ComparedRow};
use results::Row;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) caption: String,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<TableCell>>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Column {
    pub(crate) title: String,
    /// An explanation; empty if the title suffices.
    pub(crate) help: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Few distinct texts: rows are filtered by one of them.
    Choice,
    /// The name of the row.
    Name,
    Number,
    Text,
    /// A short text.
    Word,
    /// A command to copy.
    Code,
}

/// Serialized as its text, or as text and number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TableCell(Cell);

impl Serialize for TableCell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.value {
            Some(value) => (&self.0.text, value).serialize(serializer),
            None => self.0.text.serialize(serializer),
        }
    }
}

fn column(title: &str, help: &str, kind: Kind) -> Column {
    Column { title: title.into(), help: help.into(), kind }
}

fn text(text: impl Into<String>) -> TableCell {
    TableCell(Cell { text: text.into(), value: None })
}

fn number(shown: String, value: f64) -> TableCell {
    TableCell(Cell { text: shown, value: Some(value) })
}

fn size(bytes: Option<u64>) -> TableCell {
    bytes.map_or_else(|| text("-"), |bytes| number(Bytes(bytes).to_string(), bytes as f64))
}

/// The columns that name a row: its point, if there are several, and its strategy.
fn names(compared: &Compared) -> Vec<Column> {
    let mut columns = Vec::new();
    if has_points(compared) {
        columns.push(column("point", "swept values that all strategies share", Kind::Choice));
    }
    columns.push(column(&compared.name, "", Kind::Name));
    columns
}

fn has_points(compared: &Compared) -> bool {
    compared.rows.iter().any(|row| !row.group.is_empty())
}

fn name(compared: &Compared, row: &ComparedRow, name: &str) -> Vec<TableCell> {
    let point = has_points(compared).then(|| text(&row.group));
    point.into_iter().chain([text(name)]).collect()
}

/// The table of `runner compare`.
pub(crate) fn comparison(compared: &Compared) -> Table {
    let mut columns = vec![column("mark", "explained below the table", Kind::Choice)];
    columns.extend(names(compared));
    for title in &compared.columns {
        columns.push(column(&title.title, &title.explanation, Kind::Number));
    }
    columns.push(column("effects", "counted actions of the strategy, status and warnings", Kind::Text));
    let cells = |row: &ComparedRow| {
        let mut cells = vec![text(&row.mark)];
        cells.extend(name(compared, row, &row.name));
        cells.extend(row.cells.iter().cloned().map(TableCell));
        cells.push(text(&row.effects));
        cells
    };
    let caption = format!("{}: strategies compared", compared.experiment);
    Table { caption, columns, rows: compared.rows.iter().map(cells).collect() }
}

/// Effects of each strategy, counted or read independently.
pub(crate) fn effects(compared: &Compared) -> Table {
    let mut columns = names(compared);
    columns.extend([
        column("status", "", Kind::Choice),
        column("effects", "counted actions, dtypes, warnings", Kind::Text),
        column("recomputed", "recomputed FLOPs of a step, counted", Kind::Number),
        column("to host", "bytes of a step copied to the host", Kind::Number),
        column("to device", "bytes of a step copied to the device", Kind::Number),
        column("predicted", "live bytes at the peak, before the run", Kind::Number),
        column("measured", "live bytes at the peak, counted at every allocation", Kind::Number),
        column("reserved", "bytes obtained from the system at the peak", Kind::Number),
        column(
            "external",
            "independent reading: growth of the resident set (CPU) or of the driver's count (GPU)",
            Kind::Number,
        ),
        column(
            "digest",
            "of parameters and optimizer states after the last step: equal for bitwise equal training",
            Kind::Word,
        ),
        column("repeats", "with measurements", Kind::Number),
        column("run", "digest of configuration, target and data", Kind::Word),
    ]);
    let cells = |one: &ComparedRow| {
        let row: &Row = &one.row;
        let short = |digest: &str| text(digest.chars().take(12).collect::<String>());
        let flops = |flops: u64| number(format!("{}FLOP", compare::rate(flops as f64)), flops as f64);
        let mut cells = name(compared, one, &one.label);
        cells.extend([
            text(status(row)),
            text(&one.effects),
            row.recompute_flops.map_or_else(|| text("-"), flops),
            size(row.to_host_bytes),
            size(row.to_device_bytes),
            size(row.predicted_peak_bytes),
            size(row.peak_bytes),
            size(row.reserved_peak_bytes),
            size(row.external_peak_bytes),
            short(&row.digest),
            number(one.repeats.to_string(), one.repeats as f64),
            short(&row.run_id),
        ]);
        cells
    };
    let caption = format!("{}: effects", compared.experiment);
    Table { caption, columns, rows: compared.rows.iter().map(cells).collect() }
}

fn status(row: &Row) -> String {
    serde_json::to_value(row.status)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// The machines of the rows, with what was measured about them.
pub(crate) fn machines(compared: &Compared) -> Table {
    let columns = vec![
        column("device", "", Kind::Name),
        column("memory limit", "", Kind::Number),
        column("limit of", "", Kind::Word),
        column("host limit", "", Kind::Number),
        column("threads", "", Kind::Number),
        column("instructions", "instruction set of matmuls", Kind::Word),
        column("matmul rate", "of a large matmul, measured after the first repeat", Kind::Number),
        column(
            "copy rate",
            "bytes read and written per second in device memory, measured likewise",
            Kind::Number,
        ),
        column("version", "of the program", Kind::Word),
        column("rows", "", Kind::Number),
    ];
    let mut machines: Vec<(Vec<TableCell>, Vec<&Row>)> = Vec::new();
    for row in compared.rows.iter().map(|row| &row.row).filter(|row| !row.device.is_empty()) {
        let own = if row.limited { "--memory" } else { "the device" };
        let threads =
            row.threads.map_or_else(|| text("-"), |threads| number(threads.to_string(), threads as f64));
        let key = vec![
            text(&row.device),
            size(row.limit_bytes),
            text(own),
            size(row.host_limit_bytes),
            threads,
            text(&row.instruction_set),
            text(&row.version),
        ];
        match machines.iter_mut().find(|(known, _)| *known == key) {
            Some((_, rows)) => rows.push(row),
            None => machines.push((key, vec![row])),
        }
    }
    let rate = |rows: &[&Row], of: fn(&Row) -> Option<f64>, unit: &str| {
        let first = rows.iter().find_map(|row| of(row));
        first.map_or_else(|| text("-"), |rate| number(format!("{}{unit}", compare::rate(rate)), rate))
    };
    let rows = machines.into_iter().map(|(mut cells, rows)| {
        let version = cells.pop().unwrap_or_else(|| text(""));
        cells.push(rate(&rows, |row| row.product_flops_per_s, "FLOP/s"));
        cells.push(rate(&rows, |row| row.copy_bytes_per_s, "B/s"));
        cells.push(version);
        cells.push(number(rows.len().to_string(), rows.len() as f64));
        cells
    });
    Table { caption: format!("{}: machines", compared.experiment), columns, rows: rows.collect() }
}

/// The command that repeats each row.
pub(crate) fn commands(compared: &Compared, commands: &[String]) -> Table {
    let mut columns = names(compared);
    columns.push(column("command", "", Kind::Code));
    let cells = |(one, command): (&ComparedRow, &String)| {
        let mut cells = name(compared, one, &one.label);
        cells.push(text(command));
        cells
    };
    let caption = format!("{}: commands that repeat the rows", compared.experiment);
    Table { caption, columns, rows: compared.rows.iter().zip(commands).map(cells).collect() }
}
