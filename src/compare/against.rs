//! Compares a table with a stored one: a check for continuous integration.

use std::collections::{BTreeMap, BTreeSet};

use super::CompareError;
use super::entry::useful_tokens_per_s;
use super::numbers::{rate, size};
use super::text::{pad_left, pad_right, width};
use base::statistics;
use results::{Row, Status};

/// The confidence of the interval of each table's speed: that of their ratio is then at least 95 %.
const CONFIDENCE: f64 = 0.975;

/// The tolerated changes, as shares; `None` tolerates any.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tolerated {
    pub slower: Option<f64>,
    pub larger: Option<f64>,
}

/// A run in both tables.
struct Pair<'a> {
    name: String,
    old: Vec<&'a Row>,
    new: Vec<&'a Row>,
}

/// The comparison as text, and the number of runs that exceed what is tolerated.
pub struct Against {
    pub text: String,
    pub exceeding: usize,
}

/// Compares each run of a stored table with the same strategy and axis values in a new one.
///
/// # Errors
/// The tables have no run in common, or a speed is to be checked that another device measured.
pub fn against(new: &[Row], old: &[Row], tolerated: Tolerated) -> Result<Against, CompareError> {
    let mut pairs: BTreeMap<String, Pair<'_>> = BTreeMap::new();
    let mut order = Vec::new();
    let distinct = |of: fn(&Row) -> &str| -> [BTreeSet<&str>; 2] {
        [old, new].map(|rows| rows.iter().map(of).collect())
    };
    let experiments: BTreeSet<&str> = distinct(|row| &row.experiment).into_iter().flatten().collect();
    let [old_devices, new_devices] = distinct(|row| &row.device);
    let labels = Labels {
        experiment: experiments.len() > 1,
        // Tables of two machines are compared as if of one, but for their speeds.
        device: !old_devices.is_disjoint(&new_devices) && old_devices.union(&new_devices).count() > 1,
    };
    for (rows, is_old) in [(old, true), (new, false)] {
        for row in rows {
            let name = labels.name(row);
            let pair = pairs.entry(name.clone()).or_insert_with(|| {
                order.push(name.clone());
                Pair { name, old: Vec::new(), new: Vec::new() }
            });
            if is_old { &mut pair.old } else { &mut pair.new }.push(row);
        }
    }
    let pairs: Vec<&Pair<'_>> = order.iter().filter_map(|name| pairs.get(name)).collect();
    if pairs.iter().all(|pair| pair.old.is_empty() || pair.new.is_empty()) {
        return Err(CompareError::NothingInCommon);
    }
    let (mut lines, mut exceeding) = (Vec::new(), 0);
    for pair in pairs.iter().filter(|pair| !pair.old.is_empty()) {
        let (line, exceeds) = line(pair, tolerated)?;
        exceeding += usize::from(exceeds);
        lines.push(line);
    }
    let added = pairs.iter().filter(|pair| pair.old.is_empty()).count();
    let mut text = aligned(&lines);
    if added > 0 {
        text.push_str(&format!("{added} more runs in the new table only\n"));
    }
    Ok(Against { text, exceeding })
}

/// What tells runs apart beside the strategy and the swept keys.
struct Labels {
    experiment: bool,
    device: bool,
}

impl Labels {
    /// `gpt2-24gb: bf16, train.batch_size = 8 (NVIDIA L4)`
    fn name(&self, row: &Row) -> String {
        let experiment = if self.experiment { format!("{}: ", row.experiment) } else { String::new() };
        let axes: String = row.axes.iter().map(|(key, value)| format!(", {key} = {value}")).collect();
        let device = if self.device { format!(" ({})", row.device) } else { String::new() };
        format!("{experiment}{}{axes}{device}", row.strategy)
    }
}

const HEADINGS: [&str; 6] = ["", "strategy", "peak", "change", "speed", "change"];

fn line(pair: &Pair<'_>, tolerated: Tolerated) -> Result<([String; 7], bool), CompareError> {
    let ok = |rows: &[&Row]| rows.iter().any(|row| row.status == Status::Ok);
    let mut verdicts: Vec<String> = Vec::new();
    let mut exceeds = false;
    if pair.new.is_empty() {
        (exceeds, verdicts) = (true, vec!["missing".to_owned()]);
    } else if ok(&pair.old) && !ok(&pair.new) {
        let status = pair.new.first().map_or_else(String::new, |row| row.status.to_string());
        (exceeds, verdicts) = (true, vec![format!("status {status}")]);
    }
    let [old_peak, new_peak] = [&pair.old, &pair.new].map(|rows| peak(rows));
    let mut peak_change = "-".to_owned();
    if let (Some(old), Some(new)) = (old_peak, new_peak) {
        let ratio = new as f64 / old.max(1) as f64;
        peak_change = change(ratio);
        if tolerated.larger.is_some_and(|larger| ratio > 1.0 + larger) {
            exceeds = true;
            verdicts.push("LARGER".to_owned());
        }
    }
    let [old_speeds, new_speeds] = [&pair.old, &pair.new].map(|rows| speeds(rows));
    let mut speed_change = "-".to_owned();
    if let Some((old, new)) = statistics::median(&old_speeds).zip(statistics::median(&new_speeds)) {
        let ratio = new / old;
        speed_change = change(ratio);
        if let Some(slower) = tolerated.slower {
            let device = |rows: &[&Row]| rows.first().map(|row| row.device.clone()).unwrap_or_default();
            let devices = [device(&pair.old), device(&pair.new)];
            if devices[0] != devices[1] {
                return Err(CompareError::OtherDevice { name: pair.name.clone(), devices });
            }
            if ratio < 1.0 - slower {
                match is_slower(&old_speeds, &new_speeds) {
                    Some(true) => {
                        exceeds = true;
                        verdicts.push("SLOWER".to_owned());
                    }
                    Some(false) => verdicts.push("slower within the noise".to_owned()),
                    None => verdicts.push("slower, with too few repeats to tell".to_owned()),
                }
            }
        }
    }
    let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    Ok((
        [
            if exceeds { "!" } else { " " }.to_owned(),
            pair.name.clone(),
            shown(new_peak.map(size)),
            peak_change,
            shown(statistics::median(&new_speeds).map(rate)),
            speed_change,
            verdicts.join(", "),
        ],
        exceeds,
    ))
}

/// Whether all speeds that the confidence intervals allow are lower than the old ones; `None` with too few repeats.
fn is_slower(old: &[f64], new: &[f64]) -> Option<bool> {
    let interval = |values| {
        statistics::median_interval(values, CONFIDENCE).filter(|interval| interval.coverage >= CONFIDENCE)
    };
    let all_far = |factor: f64| old.iter().all(|old| new.iter().all(|new| new * factor < *old));
    match (interval(old), interval(new)) {
        (Some(old), Some(new)) => Some(new.high < old.low),
        _ if all_far(statistics::BY_FAR) => Some(true),
        _ => None,
    }
}

/// The peak of live bytes: measured, else predicted.
fn peak(rows: &[&Row]) -> Option<u64> {
    rows.iter().filter_map(|row| row.peak_bytes.or(row.predicted_peak_bytes)).max()
}

/// Tokens or samples per second, one for each repeat.
fn speeds(rows: &[&Row]) -> Vec<f64> {
    let speeds = rows.iter().filter_map(|row| useful_tokens_per_s(row).or(row.samples_per_s));
    speeds.filter(|speed| speed.is_finite() && *speed > 0.0).collect()
}

fn change(ratio: f64) -> String {
    format!("{:+.1}%", 100.0 * (ratio - 1.0))
}

fn aligned(lines: &[[String; 7]]) -> String {
    let widths: Vec<usize> = (0..6)
        .map(|at| lines.iter().map(|line| width(&line[at])).chain([width(HEADINGS[at])]).max().unwrap_or(0))
        .collect();
    let row = |cells: &dyn Fn(usize) -> String, verdict: &str| {
        let cells = (0..6).map(|at| match at {
            0 | 1 => pad_right(&cells(at), widths[at]),
            _ => pad_left(&cells(at), widths[at]),
        });
        format!("{}  {verdict}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned() + "\n"
    };
    let headings = row(&|at| HEADINGS[at].to_owned(), "");
    lines.iter().fold(headings, |text, line| text + &row(&|at| line[at].clone(), &line[6]))
}
