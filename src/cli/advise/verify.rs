//! `advise --verify`: trains the best runs and compares the predicted order with the measured one.

use std::path::Path;

use super::{Advisor, text};
use crate::failure::Failure;
use crate::{export, output, sweep};
use ::plan::Found;
use compare::milliseconds;
use results::csv;

/// The repeats of each run: the least that give a confidence interval.
const REPEATS: u32 = 3;

/// Trains the runs, prints both orders, and returns the fastest.
///
/// # Errors
/// The runs cannot be trained, or none finished.
pub(super) fn best<'f>(advisor: &Advisor<'_>, found: &'f [Found], out: &Path) -> Result<&'f Found, Failure> {
    let names: Vec<String> = (1..=found.len()).map(|number| format!("advised-{number}")).collect();
    let runs: Vec<_> =
        names.iter().map(String::as_str).zip(found.iter().map(|found| &found.config)).collect();
    let name = format!("{}-verified", advisor.plan.experiment);
    let folder = out.join(".advised");
    std::fs::create_dir_all(&folder)
        .map_err(|error| Failure::machine(format!("cannot make {}: {error}", folder.display())))?;
    let file = folder.join(format!("{name}.toml"));
    export::write(&file, spec::experiment_toml(&name, &runs))?;
    sweep::train(&file, out, advisor.args.inputs.machine(), REPEATS)?;
    let rows = csv::read(&out.join(format!("{name}.csv"))).map_err(Failure::machine)?;
    let measured = |name: &str| -> Option<f64> {
        let of_run = rows.iter().filter(|row| row.strategy == name);
        let mut times: Vec<f64> = of_run.filter_map(|row| row.measured.step_ms_median).collect();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    };
    let mut order: Vec<(usize, f64)> =
        names.iter().enumerate().filter_map(|(index, name)| Some((index, measured(name)?))).collect();
    // Estimated milliseconds of a step and of a token have the same ratio as measured ones.
    let by_token = |(index, ms): &(usize, f64)| ms * found[*index].token_ms() / found[*index].step_ms;
    order.sort_by(|one, other| by_token(one).total_cmp(&by_token(other)));
    let Some((best, _)) = order.first().copied() else {
        return Err(Failure::machine("no run was measured"));
    };
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
    output::print(&lines)?;
    Ok(&found[best])
}
