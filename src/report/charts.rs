//! The charts of an experiment: memory against speed, memory by role, losses.

use std::collections::BTreeSet;

use crate::chart::{Chart, Marks, Point, Series, thinned};
use crate::run_files::RunFiles;
use base::units::Bytes;
use compare::{Compared, ComparedRow, Unit};
use device::Role;
use results::Status;

/// The most groups with charts, rows in a chart, and points on a line. Tables show everything.
const MOST_GROUPS: usize = 50;
const MOST_BARS: usize = 40;
const MOST_POINTS: usize = 2000;
const MOST_LINES: usize = 16;
const MOST_LINE_POINTS: usize = 400;
/// The most names of one line.
const MOST_NAMES: usize = 6;

/// The stack of measured bars.
const MEASURED: &str = "measured";
/// Colours of series without a role.
const PREDICTED: usize = 10;
const PYTORCH: usize = 11;
/// Colours of lines.
const LINES: [usize; 9] = [0, 4, 5, 3, 7, 2, 8, 9, 1];

/// The rows of a point of the sweep.
pub(crate) struct Group<'a> {
    pub(crate) heading: &'a str,
    /// With their indices in the comparison.
    pub(crate) rows: Vec<(usize, &'a ComparedRow)>,
}

pub(crate) fn groups(compared: &Compared) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (at, row) in compared.rows.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if group.heading == row.group => group.rows.push((at, row)),
            _ => groups.push(Group { heading: &row.group, rows: vec![(at, row)] }),
        }
    }
    groups.truncate(MOST_GROUPS);
    groups
}

/// `speed`, `speed/batch 4`
fn name(kind: &str, group: &Group<'_>) -> String {
    if group.heading.is_empty() { kind.to_owned() } else { format!("{kind}/{}", group.heading) }
}

fn title(text: &str, group: &Group<'_>) -> String {
    if group.heading.is_empty() { text.to_owned() } else { format!("{text}, {}", group.heading) }
}

/// `first 40 of 812 rows`
fn first_of(shown: usize, all: usize, things: &str) -> Option<String> {
    (shown < all).then(|| format!("the chart shows the first {shown} of {all} {things}"))
}

/// Joins remarks to sentences.
fn note(parts: impl IntoIterator<Item = String>) -> String {
    let sentence = |part: String| {
        let mut letters = part.chars();
        let first = letters.next().map(|first| first.to_uppercase().collect::<String>()).unwrap_or_default();
        format!("{first}{}.", letters.as_str())
    };
    parts.into_iter().map(sentence).collect::<Vec<_>>().join(" ")
}

/// Speed against the live peak, with the Pareto front.
pub(crate) fn speed(compared: &Compared, group: &Group<'_>) -> Chart {
    let unit = unit(group, |row| row.memory);
    let mut front = series("Pareto front", 0);
    let mut others = series("other strategies", PREDICTED);
    front.special = true;
    let (mut unmeasured, mut all) = (Vec::new(), 0);
    for (_, row) in &group.rows {
        let (Some(memory), Some(speed)) = (row.memory, row.speed) else {
            unmeasured.push(format!("{} ({})", row.label, why(row.row.status)));
            continue;
        };
        all += 1;
        if all > MOST_POINTS {
            continue;
        }
        let reserved = row.reserved.filter(|bytes| *bytes != memory);
        let reserved = reserved.map(|bytes| format!(", {} reserved", Bytes(bytes))).unwrap_or_default();
        let mut text = vec![row.label.clone(), format!("{} live{reserved}", Bytes(memory))];
        text.push(format!("{} {}", compare::rate(speed), compared.speed_unit));
        text.extend(Some(row.effects.clone()).filter(|text| !text.is_empty()));
        let to = if row.pareto { &mut front } else { &mut others };
        to.points.push(Point { x: unit.of(memory), y: speed, text });
    }
    others.name = if front.points.is_empty() { "strategies" } else { "other strategies" }.to_owned();
    front.points.sort_by(|one, other| one.x.total_cmp(&other.x));
    let ranked = (front.points.is_empty() && all > 1)
        .then(|| "there is no Pareto front, because the repeats do not rank these speeds".to_owned());
    let missing = match unmeasured.len() {
        0 => None,
        n if n > 6 => Some(format!("{n} rows have no speed")),
        _ => Some(format!("without a speed: {}", unmeasured.join(", "))),
    };
    let limited = first_of(all.min(MOST_POINTS), all, "rows");
    Chart {
        name: name("speed", group),
        point: group.heading.to_owned(),
        title: title("Memory against speed", group),
        marks: Marks::Points,
        x: format!("peak of live memory, {}", unit.name),
        y: compared.speed_unit.to_owned(),
        categories: Vec::new(),
        series: [front, others].into_iter().filter(|series| !series.points.is_empty()).collect(),
        note: note(ranked.into_iter().chain(missing).chain(limited)),
    }
}

fn why(status: Status) -> &'static str {
    match status {
        Status::Ok => "not measured",
        Status::Oom => "out of memory",
        Status::Diverged => "diverged",
        Status::Skipped => "skipped",
        Status::Timeout => "timed out",
        Status::Failed => "failed",
        Status::Interrupted => "interrupted",
    }
}

/// The peak by role, beside the predicted peak and PyTorch's.
pub(crate) fn memory(group: &Group<'_>, files: &[RunFiles]) -> Chart {
    let all = group.rows.iter().filter(|(_, row)| row.memory.is_some());
    let rows: Vec<(&ComparedRow, &RunFiles)> = all.map(|(at, row)| (*row, &files[*at])).collect();
    let shown = &rows[..rows.len().min(MOST_BARS)];
    let unit = unit(group, |row| row.memory);
    let bar = |name: &str, stack: &str, color, bytes: &dyn Fn(&ComparedRow, &RunFiles) -> Option<u64>| {
        let points = shown.iter().enumerate().filter_map(|(at, (row, files))| {
            let bytes = bytes(row, files).filter(|bytes| *bytes > 0)?;
            let text = vec![format!("{}: {}", row.label, Bytes(bytes))];
            Some(Point { x: unit.of(bytes), y: at as f64, text })
        });
        let special = stack != MEASURED;
        Series { stack: stack.into(), points: points.collect(), special, ..series(name, color) }
    };
    let has_roles = |row: &ComparedRow| {
        row.row.peak_bytes.is_some() && row.row.live.iter().any(|(_, bytes)| bytes.is_some())
    };
    let mut all = Vec::new();
    for role in Role::ALL {
        let measured = |row: &ComparedRow, _: &RunFiles| row.row.live[role].filter(|_| has_roles(row));
        all.push(bar(role.name(), MEASURED, role as usize, &measured));
    }
    // Tables of other programs have a peak without roles.
    let whole = |row: &ComparedRow, _: &RunFiles| row.row.peak_bytes.filter(|_| !has_roles(row));
    all.push(bar("measured, all roles", MEASURED, 0, &whole));
    for role in Role::ALL {
        let predicted = |_: &ComparedRow, files: &RunFiles| files.predicted.map(|live| live[role]);
        all.push(bar(&format!("{}, predicted", role.name()), "predicted", role as usize, &predicted));
    }
    let whole = |row: &ComparedRow, files: &RunFiles| {
        row.row.predicted_peak_bytes.filter(|_| files.predicted.is_none())
    };
    all.push(bar("predicted", "predicted", PREDICTED, &whole));
    all.push(bar("PyTorch, predicted", "PyTorch", PYTORCH, &|row, _| row.row.torch_peak_bytes));
    all.retain(|series| !series.points.is_empty());
    let outlined = if all.iter().any(|series| series.special) { "; outlined: predicted" } else { "" };
    let shown: Vec<&ComparedRow> = shown.iter().map(|(row, _)| *row).collect();
    let ended = shown.iter().any(|row| row.row.oom_short_bytes.is_some());
    let ended = ended.then(|| {
        "the measured bar of a run that ran out of memory ends where the limit stopped it; the predicted bar is its need"
            .to_owned()
    });
    let limits: BTreeSet<u64> =
        shown.iter().filter(|row| row.row.limited).filter_map(|row| row.row.limit_bytes).collect();
    let limit = limits.first().filter(|_| limits.len() == 1);
    let limit = limit.map(|limit| format!("the limit, of reserved bytes, is {}", Bytes(*limit)));
    let torch = shown.iter().any(|row| row.row.torch_peak_bytes.is_some());
    let torch = (!torch).then(|| {
        "the table holds no figures of PyTorch: they are predicted for the cards that `runner devices --targets` lists"
            .to_owned()
    });
    Chart {
        name: name("memory", group),
        point: group.heading.to_owned(),
        title: title("Peak of live memory by role", group),
        marks: Marks::Bars,
        x: format!("{}{outlined}", unit.name),
        y: String::new(),
        categories: shown.iter().map(|row| row.label.clone()).collect(),
        series: all,
        note: note(limit.into_iter().chain(ended).chain(torch).chain(first_of(
            shown.len(),
            rows.len(),
            "rows",
        ))),
    }
}

/// Training losses as lines, evaluation losses as points.
pub(crate) fn losses(group: &Group<'_>, files: &[RunFiles]) -> Chart {
    // Equal curves, as of runs that train bitwise equally, are one line.
    let mut curves: Vec<(Vec<&str>, &RunFiles)> = Vec::new();
    for (at, row) in group.rows.iter().filter(|(at, _)| !files[*at].losses.is_empty()) {
        let own = &files[*at];
        let is_equal = |known: &RunFiles| known.losses == own.losses && known.evaluations == own.evaluations;
        match curves.iter_mut().find(|(_, known)| is_equal(known)) {
            Some((labels, _)) => labels.push(&row.label),
            None => curves.push((vec![&row.label], own)),
        }
    }
    let mut all = Vec::new();
    let mut thinner = false;
    for (number, (labels, of_run)) in curves.iter().take(MOST_LINES).enumerate() {
        let rest = labels.len().saturating_sub(MOST_NAMES);
        let label = labels[..labels.len() - rest].join(" = ");
        let label = if rest > 0 { format!("{label} = {rest} more") } else { label };
        let color = LINES[number % LINES.len()];
        let point = |(step, loss): (u64, f64)| Point { x: step as f64, y: loss, text: Vec::new() };
        let line = |name: String, losses: &[(u64, f64)], special| Series {
            special,
            points: thinned(losses, MOST_LINE_POINTS).into_iter().map(point).collect(),
            ..series(&name, color)
        };
        let RunFiles { losses, evaluations, .. } = of_run;
        thinner |= losses.len() > MOST_LINE_POINTS;
        all.push(line(label.clone(), losses, false));
        if !evaluations.is_empty() {
            all.push(line(format!("{label}, evaluation"), evaluations, true));
        }
    }
    let evaluated = all.iter().any(|series| series.special);
    let evaluated = evaluated.then(|| "diamonds are losses of the evaluation split".to_owned());
    let limited = first_of(curves.len().min(MOST_LINES), curves.len(), "curves");
    let thinner = thinner.then(|| format!("long curves have {MOST_LINE_POINTS} of their steps"));
    Chart {
        name: name("loss", group),
        point: group.heading.to_owned(),
        title: title("Loss by step", group),
        marks: Marks::Lines,
        x: "step".to_owned(),
        y: "loss".to_owned(),
        categories: Vec::new(),
        series: all,
        note: note(evaluated.into_iter().chain(limited).chain(thinner)),
    }
}

fn series(name: &str, color: usize) -> Series {
    Series { name: name.to_owned(), color, stack: String::new(), special: false, points: Vec::new() }
}

fn unit(group: &Group<'_>, bytes: impl Fn(&ComparedRow) -> Option<u64>) -> Unit {
    Unit::for_sizes(group.rows.iter().filter_map(|(_, row)| bytes(row)))
}
