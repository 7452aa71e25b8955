//! The text of `advise`.

use super::Advisor;
use crate::devices::columns;
use crate::failure::Failure;
use crate::fitted::fitted;
use ::plan::{
    Found, RatesOrigin, SearchResults, Timed, Trial, sufficient_memory, torch_machine, with_micro_batches,
};
use base::units::Bytes;
use compare::{Unit, milliseconds};
use device::{DeviceKind, KNOWN_CARDS, KnownCard};
use spec::Update;

/// Host memory below this does not come from a strategy.
const SMALL: u64 = 1 << 20;

/// The fastest runs that fit.
pub(super) fn results(
    advisor: &Advisor<'_>,
    results: &SearchResults,
    estimated: usize,
    width: usize,
) -> Result<String, Failure> {
    let SearchResults { found, examined } = results;
    let program = match advisor.decides_pytorch {
        true => advisor.plan.keys.torch_program(Some(advisor.config)),
        false => "this program".to_owned(),
    };
    let mut out = fitted(
        &format!(
            "\nrun {} of {}, batch {}; memory of {program}\n{estimated} combinations estimated, {examined} searched for \
             the largest micro-batch\n",
            advisor.strategy, advisor.plan.experiment, advisor.config.train.batch_size
        ),
        width,
    );
    out.push_str(&match advisor.own_time()? {
        Some(ms) => format!("{} fits as it is: {} ms/step, estimated\n", advisor.strategy, milliseconds(ms)),
        None => format!("{} does not fit as it is, or has no estimate\n", advisor.strategy),
    });
    if found.is_empty() {
        return Ok(out);
    }
    let unit = Unit::for_sizes(found.iter().map(|found| found.peak));
    let mut lines = vec![["", "", unit.name, "~ms/step", "micro-batch"].map(str::to_owned)];
    for (number, found) in found.iter().enumerate() {
        let Found { config, step_ms, peak, .. } = found;
        lines.push([
            (number + 1).to_string(),
            String::new(),
            unit.show(*peak),
            milliseconds(*step_ms),
            config.micro_batch().to_string(),
        ]);
    }
    let table = columns::aligned(&lines, width);
    let mut rows = table.lines();
    out.push_str(&format!("\n{}  changes to {}\n", rows.next().unwrap_or_default(), advisor.strategy));
    for (row, found) in rows.zip(found) {
        out.push_str(&fitted(&format!("{row}  {}\n", settings(found, advisor)), width));
    }
    let origin = match advisor.rates.origin {
        RatesOrigin::Unknown => {
            "at assumed rates (20 GB/s, 80 GFLOP/s): no run of this device was measured; `--verify 3` trains the best"
        }
        RatesOrigin::Runs(_) => "from measured rates of this device",
        RatesOrigin::DataSheet => "from a data sheet's peak rates, for ranking only",
    };
    out.push_str(&fitted(&format!("~ms/step: estimated {origin}\n"), width));
    Ok(out)
}

/// `recompute = "block", accumulate = 4`
pub(super) fn settings(found: &Found, advisor: &Advisor<'_>) -> String {
    let mut settings: Vec<String> = found.keys.iter().map(|key| key.setting()).collect();
    let number = found.config.strategy.accumulate;
    if number != advisor.config.strategy.accumulate {
        settings.push(format!("accumulate = {number}"));
    }
    if settings.is_empty() { "none".to_owned() } else { settings.join(", ") }
}

/// What each key of the best run buys and costs.
pub(super) fn keys(advisor: &Advisor<'_>, best: &Found, width: usize) -> Result<String, Failure> {
    let mut lines = vec![["", "each key of 1", "memory", "time"].map(str::to_owned)];
    let mut results = vec![String::new()];
    let mut add = |setting: String, without: Option<Found>, result: &str| {
        let [memory, time] = match without {
            Some(without) => {
                let bytes = best.peak as i128 - without.peak as i128;
                let sign = if bytes < 0 { "-" } else { "+" };
                let time = 100.0 * (best.token_ms() / without.token_ms() - 1.0);
                let time = if time.abs() < 0.5 { 0.0 } else { time };
                [format!("{sign}{}", Bytes(bytes.unsigned_abs() as u64)), format!("{time:+.0}%")]
            }
            None => ["needed here".to_owned(), "-".to_owned()],
        };
        lines.push([String::new(), setting, memory, time]);
        results.push(result.to_owned());
    };
    for (index, key) in best.keys.iter().enumerate() {
        add(key.setting(), advisor.without(best, index)?, key.result);
    }
    let (number, own) = (best.config.strategy.accumulate, advisor.config.strategy.accumulate);
    if number != own {
        let trial = Trial { keys: best.keys.clone(), config: best.config.clone() };
        add(format!("accumulate = {number}"), advisor.with_number(trial, own)?, "equal up to rounding");
    }
    if lines.len() == 1 {
        return Ok(String::new());
    }
    let longest = results.iter().map(String::len).max().unwrap_or(0);
    let table = columns::aligned(&lines, width.saturating_sub(longest + 2));
    let rows = table
        .lines()
        .zip(results)
        .map(|(row, result)| format!("{row}  {result}").trim_end().to_owned() + "\n");
    Ok(format!("\n{}", rows.collect::<String>()))
}

/// What more memory would buy, and the smallest card that would do.
pub(super) fn alternatives(
    advisor: &Advisor<'_>,
    best: &Found,
    timed: &[Timed],
    width: usize,
) -> Result<String, Failure> {
    let mut sentences = Vec::new();
    if advisor.plan.target.memory.0 < u64::MAX {
        let (target, bytes) = advisor.larger_target();
        let more = advisor.search(&target)?.run(timed).map_err(Failure::machine)?;
        let faster = more.found.first().filter(|more| more.token_ms() < 0.995 * best.token_ms());
        sentences.push(match faster {
            Some(more) => format!(
                "With {} more: {:+.0}% time with {}.",
                bytes,
                100.0 * (more.token_ms() / best.token_ms() - 1.0),
                settings(more, advisor)
            ),
            None => format!("With {bytes} more, nothing is faster by 0.5% or more."),
        });
    }
    let machine = advisor.machine(&advisor.plan.target)?;
    let sufficient = sufficient_memory(&best.config, &advisor.plan.target, machine);
    if let Some(sufficient) = sufficient.map_err(Failure::machine)? {
        let is_card = advisor.plan.target.kind == DeviceKind::Cuda;
        let card = if is_card { smallest_card(advisor, best)? } else { None };
        let card = card.map(|card| {
            let memory = card.memory;
            format!("; the smallest known card for it is {} ({memory})", card.word)
        });
        let what = if advisor.plan.target.context.0 > 0 { ", the device's context included" } else { "" };
        let card = card.unwrap_or_default();
        sentences.push(format!("Run 1 needs {}{what}{card}.", Bytes(sufficient)));
        if best.host > SMALL {
            sentences.push(format!("It also keeps {} in host memory.", Bytes(best.host)));
        }
    }
    Ok(sentences.iter().fold("\n".to_owned(), |out, sentence| out + &fitted(sentence, width) + "\n"))
}

/// The known card with the least memory on which a run fits.
fn smallest_card(advisor: &Advisor<'_>, best: &Found) -> Result<Option<&'static KnownCard>, Failure> {
    let mut cards: Vec<&KnownCard> = KNOWN_CARDS.iter().filter(|card| card.memory.0 > best.peak).collect();
    cards.sort_by_key(|card| card.memory);
    for card in cards {
        let target = card.target();
        let is_predicted = match advisor.decides_pytorch {
            true => torch_machine(&target, advisor.plan.keys).is_some(),
            false => !target.is_too_old(),
        };
        if is_predicted && advisor.search(&target)?.fits(&best.config).map_err(Failure::machine)? {
            return Ok(Some(card));
        }
    }
    Ok(None)
}

/// The combination that needs the least memory, if none fits.
pub(super) fn nothing(advisor: &Advisor<'_>, trials: &[Trial], width: usize) -> Result<String, Failure> {
    let search = advisor.search(&advisor.plan.target)?;
    let smallest = base::parallel::map(trials.iter().collect(), |trial: &Trial| {
        let number = match trial.config.strategy.update {
            Update::AfterBackward if advisor.may_split() => trial.config.train.batch_size,
            _ => trial.config.strategy.accumulate,
        };
        search.found(trial.keys.clone(), with_micro_batches(&trial.config, number))
    });
    let smallest = smallest.into_iter().collect::<Result<Vec<_>, _>>().map_err(Failure::machine)?;
    let Some(smallest) = smallest.into_iter().flatten().min_by_key(|found| (found.peak, found.keys.len()))
    else {
        return Ok("\nNo combination has a prediction and a time.\n".to_owned());
    };
    let sufficient = sufficient_memory(&smallest.config, &advisor.plan.target, search.machine);
    let sufficient = sufficient.map_err(Failure::machine)?.unwrap_or(smallest.peak);
    let text = format!(
        "\nNo combination fits {}. The least, {}, is needed with {}.\n",
        advisor.plan.target.memory,
        Bytes(sufficient),
        settings(&smallest, advisor)
    );
    Ok(fitted(&text, width))
}
