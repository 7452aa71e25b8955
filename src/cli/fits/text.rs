//! The text of `fits`.

use super::candidates::{Best, Candidate, Candidates, Decider, Need};
use crate::devices::columns;
use crate::estimates::exchanges_between;
use crate::fitted::fitted;
use crate::messages;
use crate::torch;
use ::plan::{Choice, DeviceRates, RatesOrigin, Subject};
use base::units::Bytes;
use compare::{Unit, rate};
use device::DeviceKind;

/// The model and its training.
pub(super) fn heading(candidates: &Candidates<'_>, subject: &str, width: usize) -> String {
    let Some(plain) = candidates.all.first() else { return String::new() };
    let (config, prediction) = (plain.config, plain.run.prediction.as_ref());
    let parameters = prediction.map_or(0, |prediction| prediction.parameters);
    let samples = match config.of_rank(0).micro_batch() {
        1 => "1 sample".to_owned(),
        samples => format!("{samples} samples"),
    };
    let cards = match config.ranks() {
        1 => String::new(),
        ranks => format!(" on each of {ranks} cards"),
    };
    let tokens = config.sample().positions().map(|tokens| format!(" of {tokens} tokens")).unwrap_or_default();
    let optimizer = config.train.optimizer.name();
    let parameters = rate(parameters as f64);
    let line = format!(
        "{subject}: {parameters} parameters, {optimizer}, micro-batches of {samples}{tokens}{cards}\n"
    );
    fitted(&line, width)
}

/// The table of one target, and the decision.
pub(super) fn section(candidates: &Candidates<'_>, width: usize) -> String {
    let target = &candidates.plan.target;
    let limited = if target.limited { "limited to " } else { "" };
    let context = match target.kind {
        DeviceKind::Cuda => format!(", of which the CUDA context takes {}", target.context),
        DeviceKind::Cpu => String::new(),
    };
    let best = candidates.best();
    let alone: Vec<&Candidate<'_>> = candidates.alone().collect();
    let all = alone.iter().copied().chain(best.iter().copied());
    let unit = Unit::for_sizes(
        all.clone().flat_map(|one| one.torch_need().into_iter().chain([one.ours])).map(|need| need.peak),
    );
    let name = format!("\n{}: {limited}{}{context}; sizes in {}\n", target.name, target.memory, unit.name);
    let lines: Vec<[String; 7]> =
        [headings(unit)].into_iter().chain(all.map(|candidate| line(candidates, candidate, unit))).collect();
    let table = columns::aligned(&lines, width);
    let at = table.match_indices('\n').nth(alone.len()).map_or(table.len(), |(at, _)| at + 1);
    let (alone, together) = table.split_at(at);
    let gap = if together.is_empty() { "" } else { "\n" };
    format!("{}{alone}{gap}{together}\n{}", fitted(&name, width), fitted(&decision(candidates), width))
}

fn headings(unit: Unit) -> [String; 7] {
    ["", "remedies", "torch", "t-fits", "~tok/s", unit.name, "fits"].map(str::to_owned)
}

fn line(candidates: &Candidates<'_>, candidate: &Candidate<'_>, unit: Unit) -> [String; 7] {
    let runs_here = !candidates.plan.target.is_too_old();
    let [torch, torch_fits] = figures(candidate.torch_need(), unit);
    let [ours, fits] = figures(Some(candidate.ours).filter(|_| runs_here), unit);
    let speed = candidate.speed.map_or_else(|| "-".to_owned(), rate);
    let mark = match candidate.need(candidates.decider) {
        Some(need) if need.fits => " ",
        Some(_) => "x",
        None => "-",
    };
    [mark.to_owned(), candidate.combination.name(), torch, torch_fits, speed, ours, fits]
}

fn figures(need: Option<Need>, unit: Unit) -> [String; 2] {
    let Some(Need { peak, largest, .. }) = need else { return ["-", "-"].map(str::to_owned) };
    [unit.show(peak), largest.map_or_else(|| "-".to_owned(), |largest| largest.to_string())]
}

/// The combination to use for each precision of the parameters, and for adapters.
fn decision(candidates: &Candidates<'_>) -> String {
    let sentences = [
        ("All parameters trained, in fp32", ["fp32", "autocast"]),
        ("All parameters trained, in bf16", ["bf16", "bf16"]),
        ("Adapters trained", ["lora", "qlora"]),
    ];
    let sentence = |(what, trainings): (&str, [&str; 2])| {
        let of = candidates.all.iter().filter(|one| trainings.contains(&one.combination.training()));
        let Best { candidate, fits } = candidates.best_of(of)?;
        let (name, need) = (candidate.combination.name(), candidate.need(candidates.decider)?);
        Some(match (fits, need.largest, candidate.speed) {
            (false, ..) => {
                let sufficient = Bytes(candidates.sufficient_memory(candidate)?);
                format!("{what}: nothing fits; {name} needs the least, a card of {sufficient}.\n")
            }
            (true, Some(largest), Some(_)) => {
                format!(
                    "{what}: {name} is the fastest that fits, within 3%; micro-batches up to {largest}.\n"
                )
            }
            (true, Some(largest), None) => {
                format!("{what}: {name} fits, with micro-batches up to {largest}.\n")
            }
            (true, None, _) => format!("{what}: {name} fits.\n"),
        })
    };
    sentences.into_iter().filter_map(sentence).collect()
}

/// The meaning of the columns and of the remedies, for the tables of all targets.
#[derive(Default)]
pub(super) struct Legend {
    /// The columns that a table has, each with its meaning.
    columns: Vec<String>,
    /// Remedies and their words in PyTorch.
    remedies: Vec<[String; 2]>,
    reasons: Vec<String>,
}

impl Legend {
    pub(super) fn add(&mut self, candidates: &Candidates<'_>, catalogue: &[Choice], rates: &DeviceRates) {
        let plan = candidates.plan;
        let has_torch = candidates.all.iter().any(|candidate| candidate.torch_need().is_some());
        let program = plan.keys.torch_program(None);
        let torch = format!("torch, t-fits: peak memory of {program}, and its largest micro-batch");
        let origin = match rates.origin {
            RatesOrigin::Unknown | RatesOrigin::DataSheet => "a data sheet's peak rates, for ranking only",
            RatesOrigin::Runs(_) => "measured rates of this device",
        };
        let speed =
            format!("~tok/s: tokens per second with the largest micro-batch, estimated from {origin}");
        let ours = "GiB or MiB, fits: peak memory of this program, and its largest micro-batch";
        let decides = match candidates.decider {
            Decider::Pytorch => "in PyTorch",
            Decider::Runner => "with this program",
        };
        let marks = format!(
            "x: out of memory {decides} with this micro-batch, accumulation allows smaller ones; -: not predicted"
        );
        let has_speed = candidates.all.iter().any(|candidate| candidate.speed.is_some());
        for (is_shown, line) in [
            (has_torch, torch),
            (has_speed, speed),
            (!plan.target.is_too_old(), ours.to_owned()),
            (true, marks),
        ] {
            add(&mut self.columns, is_shown.then_some(line));
        }
        for choice in catalogue {
            // The words of optimizers are AdamW's.
            let is_adamw =
                candidates.all.first().is_some_and(|one| one.config.train.optimizer.name() == "adamw");
            let of_optimizer = matches!(choice.subject, Subject::OptimizerStates | Subject::OptimizerOffload);
            let words = match is_adamw || !of_optimizer {
                true => choice.words(plan.keys.torch_options.program),
                false => "of bitsandbytes",
            };
            let words = Some(words).filter(|_| has_torch);
            let parts = [words.unwrap_or_default(), choice.result];
            let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            let is_other = plan.target.is_too_old() && choice.subject == Subject::Training;
            let name = format!("{}{}", choice.name, if is_other { " (fp16)" } else { "" });
            let remedy = [name, parts.join("; ")];
            add(&mut self.remedies, (!parts.is_empty()).then_some(remedy));
        }
        add(&mut self.reasons, of_ranks(candidates, rates));
        let reasons = match (has_torch, candidates.alone().next().and_then(|plain| plain.torch.as_ref())) {
            (false, Some(Err(reason))) => vec![(*reason).to_owned()],
            _ => torch::not_predicted(candidates.alone().map(|candidate| candidate.run)),
        };
        let invalid = candidates.invalid.iter().filter(|(combination, _)| combination.is_alone());
        let invalid: Vec<String> =
            invalid.map(|(combination, reason)| format!("{} ({reason})", combination.name())).collect();
        for (what, reasons) in [("Not predicted for PyTorch", reasons), ("Left out", invalid)] {
            let reason = format!("{what}: {}.", reasons.join("; "));
            add(&mut self.reasons, (!reasons.is_empty()).then_some(reason));
        }
    }

    pub(super) fn text(&self, width: usize) -> String {
        let names = self.remedies.iter().map(|[name, _]| name.len()).max().unwrap_or(0);
        let remedies = self.remedies.iter().map(|[name, text]| format!("  {name:names$}  {text}"));
        let gap = || [String::new()].into_iter();
        let lines = gap().chain(self.columns.iter().cloned()).chain(gap()).chain(remedies);
        lines.chain(self.reasons.iter().cloned()).map(|line| fitted(&line, width) + "\n").collect()
    }
}

/// What the figures of several cards rest on; `None` for one card.
fn of_ranks(candidates: &Candidates<'_>, rates: &DeviceRates) -> Option<String> {
    let plain = candidates.all.first().filter(|plain| plain.config.ranks() > 1)?;
    let target = &candidates.plan.target;
    let exchanges = match rates.step_ms(&plain.run.prediction.as_ref()?.work, plain.config, target) {
        Ok(_) => exchanges_between(plain.config.ranks(), rates, target),
        Err(unknown) => Some(format!("Speeds are not estimated: {unknown}.")),
    };
    let caution = messages::communicator(target).map(|caution| format!("{caution}."));
    Some(caution.into_iter().chain(exchanges).collect::<Vec<_>>().join(" "))
}

fn add<T: PartialEq>(list: &mut Vec<T>, line: Option<T>) {
    list.extend(line.filter(|line| !list.contains(line)));
}
