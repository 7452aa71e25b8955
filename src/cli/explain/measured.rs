//! Reads a run's measured times from its results and prints them.

use std::io;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::profile::{Line, Profile, Step};
use super::tables::{self, Source};
use crate::failure::Failure;
use crate::terminal;
use base::regular;
use base::units::Bytes;
use execute::{MEMORY_FILE, STEPS_FILE};
use plan::{Plan, PlannedRun};
use results::{Row, Status, Store};

/// The largest size in bytes of a table of operations or steps: some million lines.
const LARGEST: Bytes = Bytes(256 << 20);

/// The columns of `steps.csv` that are used here.
#[derive(Debug, Deserialize)]
struct StepLine {
    step: usize,
    ms: f64,
    data_wait_ms: f64,
}

/// The tables of the run's median repeat, or the reason why there are none.
///
/// # Errors
/// Results that are unreadable or malformed.
pub(super) fn text(out: &Path, plan: &Plan, run: &PlannedRun) -> Result<String, Failure> {
    let mut store = Store::at(out, &plan.experiment);
    // Without its data a run has no id and no folder.
    let rows = match run.id.as_str() {
        "" => Vec::new(),
        id => store.finished_repeats(id).map_err(Failure::input)?,
    };
    let experiment = plan.file.display();
    let Some(first) = rows.first() else {
        return Ok(format!(
            "not measured yet: after `runner sweep {experiment}`, this also prints the time of each operation\n"
        ));
    };
    let Some(row) = median_repeat(&rows) else {
        return Ok(format!("no step was timed: {}\n", first.message));
    };
    let folder = store.repeat_folder(&run.id, row.repeat);
    let lines = read::<Line>(&folder.join(MEMORY_FILE))?;
    let steps = read::<StepLine>(&folder.join(STEPS_FILE))?;
    let (Some(lines), Some(steps)) = (lines, steps) else {
        if row.status == Status::Ok && !row.message.is_empty() {
            return Ok(format!("{}\n", row.message));
        }
        return Ok(format!(
            "the result, of version {}, has no times of operations: measure again with `runner sweep --fresh {experiment}`\n",
            row.version
        ));
    };
    let warmup_steps = row.warmup_steps.unwrap_or(0);
    let timed: Vec<&StepLine> = steps.iter().filter(|line| line.step > warmup_steps).collect();
    let row = &with_rates(row, &rows);
    let source = Source { row, repeats: rows.len(), timed_steps: timed.len() };
    let mean = mean_step(&timed);
    let step = row.profiled_step_ms.map_or(mean, |ms| Step { ms, ..mean });
    Ok(tables::render(&source, &step, &Profile::of(&lines), terminal::text_width()))
}

/// The repeat with the median step time; of two in the middle, the faster.
fn median_repeat(rows: &[Row]) -> Option<&Row> {
    let mut timed: Vec<(f64, &Row)> =
        rows.iter().filter_map(|row| Some((row.step_ms_median?, row))).collect();
    timed.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    timed.get(timed.len().saturating_sub(1) / 2).map(|(_, row)| *row)
}

/// The row, with the device rates of the repeat that measured them.
fn with_rates(row: &Row, repeats: &[Row]) -> Row {
    let mut row = row.clone();
    let measured = repeats.iter().find(|other| other.product_flops_per_s.is_some());
    if let Some(other) = measured.filter(|_| row.product_flops_per_s.is_none()) {
        row.product_flops_per_s = other.product_flops_per_s;
        row.copy_bytes_per_s = other.copy_bytes_per_s;
    }
    row
}

/// Means, as the operations' times are: means add up, medians do not.
fn mean_step(timed: &[&StepLine]) -> Step {
    let mean =
        |of: fn(&StepLine) -> f64| timed.iter().map(|line| of(line)).sum::<f64>() / timed.len().max(1) as f64;
    Step { ms: mean(|line| line.ms), data_wait_ms: mean(|line| line.data_wait_ms) }
}

/// All lines of a table; `None` if the file or one of its columns is missing: a user may have deleted it, an earlier version
/// may have written it.
pub(super) fn read<T: DeserializeOwned>(file: &Path) -> Result<Option<Vec<T>>, Failure> {
    let broken = |error: csv::Error| Failure::input(format!("cannot read {}: {error}", file.display()));
    let opened = match regular::open_up_to(file, LARGEST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| broken(error.into()))?,
    };
    let mut reader = csv::Reader::from_reader(io::BufReader::new(opened));
    let header = reader.headers().map_err(broken)?;
    if results::fields(T::deserialize).iter().any(|column| !header.iter().any(|there| there == *column)) {
        return Ok(None);
    }
    reader.deserialize().collect::<Result<_, _>>().map(Some).map_err(broken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use execute::Measured;

    #[test]
    fn the_median_repeat_is_chosen() {
        let row = |repeat, step_ms_median| {
            let measured = Measured { step_ms_median, ..Measured::default() };
            Row { repeat, measured, ..Row::default() }
        };
        let chosen = |rows: &[Row]| median_repeat(rows).map(|row| row.repeat);
        assert_eq!(chosen(&[row(1, Some(3.0)), row(2, Some(1.0)), row(3, Some(2.0))]), Some(3));
        assert_eq!(chosen(&[row(1, Some(3.0)), row(2, None), row(3, Some(2.0))]), Some(3));
        assert_eq!(chosen(&[row(1, None)]), None);
    }

    #[test]
    fn a_table_of_an_earlier_version_is_recognised() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("steps.csv");
        std::fs::write(&file, "step,loss,ms\n1,2.0,3.5\n").unwrap();
        assert!(read::<StepLine>(&file).unwrap().is_none());
        std::fs::write(&file, "step,loss,ms,data_wait_ms\n1,2.0,3.5,0.5\n2,NaN,4.5,0.1\n").unwrap();
        let lines = read::<StepLine>(&file).unwrap().unwrap();
        let step = mean_step(&lines.iter().collect::<Vec<_>>());
        assert!((step.ms - 4.0).abs() < 1e-9 && (step.data_wait_ms - 0.3).abs() < 1e-9, "{step:?}");
        std::fs::write(&file, "step,loss,ms,data_wait_ms\n1,2.0,fast,0.5\n").unwrap();
        assert!(read::<StepLine>(&file).is_err());
    }
}
