//! `advise --verify`: trains the best runs and compares the predicted order with the measured one.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Advisor, text};
use crate::failure::{ExitStatus, Failure};
use crate::{export, output, sweep};
use ::plan::Found;
use base::statistics::{Difference, FEWEST_ROUNDS, Ratio, median};
use compare::milliseconds;
use results::csv;

/// The repeats of each run: the least that can rank two speeds.
const REPEATS: u32 = FEWEST_ROUNDS as u32;

/// Trains the runs, prints both orders, and returns the fastest: the first, unless another is significantly faster. If the
/// sweep did not finish, returns its status.
///
/// # Errors
/// The runs cannot be trained, or none finished.
pub(super) fn best<'f>(
    advisor: &Advisor<'_>,
    found: &'f [Found],
    out: &Path,
) -> Result<Result<&'f Found, ExitStatus>, Failure> {
    let names: Vec<String> = (1..=found.len()).map(|number| format!("advised-{number}")).collect();
    let runs: Vec<_> =
        names.iter().map(String::as_str).zip(found.iter().map(|found| &found.config)).collect();
    let name = format!("{}-verified", advisor.plan.experiment);
    let folder = out.join(".advised");
    std::fs::create_dir_all(&folder)
        .map_err(|error| Failure::machine(format!("cannot make {}: {error}", folder.display())))?;
    let file = folder.join(format!("{name}.toml"));
    export::write(&file, spec::experiment_toml(&name, &runs))?;
    let status = sweep::train(&file, out, advisor.args.inputs.machine(), REPEATS)?;
    if status != ExitStatus::Complete {
        return Ok(Err(status));
    }
    let rows = csv::read(&out.join(format!("{name}.csv"))).map_err(Failure::machine)?;
    // By repeat: a round trains each run once.
    let rounds = |name: &str| -> BTreeMap<usize, f64> {
        let of_run = rows.iter().filter(|row| row.strategy == name);
        of_run.filter_map(|row| Some((row.repeat, row.measured.step_ms_median?))).collect()
    };
    let measured = |name: &str| median(&rounds(name).into_values().collect::<Vec<_>>());
    let mut order: Vec<(usize, f64)> =
        names.iter().enumerate().filter_map(|(index, name)| Some((index, measured(name)?))).collect();
    // Estimated milliseconds of a step and of a token have the same ratio as measured ones.
    let per_token = |index: usize| found[index].token_ms() / found[index].step_ms;
    let by_token = |(index, ms): &(usize, f64)| ms * per_token(*index);
    order.sort_by(|one, other| by_token(one).total_cmp(&by_token(other)));
    if order.is_empty() {
        return Err(Failure::machine("no run was measured"));
    }
    let first = rounds(&names[0]);
    let is_faster = |index: usize| {
        let own = rounds(&names[index]);
        let ratios = own
            .iter()
            .filter_map(|(repeat, ms)| Some(ms * per_token(index) / (first.get(repeat)? * per_token(0))));
        Ratio::of(&ratios.collect::<Vec<_>>(), 1).is_some_and(|ratio| ratio.difference == Difference::Less)
    };
    let best = order.iter().map(|(index, _)| *index).find(|index| is_faster(*index)).unwrap_or(0);
    let mut lines = String::from("\npredicted  measured  ~ms/step  ms/step\n");
    for (index, found) in found.iter().enumerate() {
        let place = order.iter().position(|(at, _)| *at == index);
        lines.push_str(&format!(
            "{:>9}  {:>8}  {:>8}  {:>7}  {}\n",
            index + 1,
            place.map_or_else(|| "-".to_owned(), |place| (place + 1).to_string()),
            milliseconds(found.step_ms),
            place.map_or_else(|| "-".to_owned(), |place| milliseconds(order[place].1)),
            text::settings(found, advisor)
        ));
    }
    lines.push_str(&match best {
        0 => "No other run is measured to be faster than run 1.\n".to_owned(),
        best => format!("Run {} is measured to be faster than run 1.\n", best + 1),
    });
    output::print(&lines)?;
    Ok(Ok(&found[best]))
}
