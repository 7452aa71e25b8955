//! Time estimates of plans: the rates that they rest on, and what they leave out.

use std::collections::HashSet;
use std::path::Path;

use super::check::counted;
use super::output;
use device::{DeviceKind, Target};
use memory::StepWork;
use plan::{DeviceRates, Plan, RatesOrigin, UnknownRate, is_on_host};
use results::Row;
use spec::{HOST_THREADS, NodeRates};

/// The device rates for each plan: measured on the machine, else from the card's data sheet. `stated` are the rates of
/// the command line, `described` those of the target file.
pub(super) fn rates(plans: &[Plan], out: &Path, stated: NodeRates, described: NodeRates) -> Vec<DeviceRates> {
    let Some(Plan { target, .. }) = plans.first() else { return Vec::new() };
    let (learned, unread) = results::learned(out, target);
    unread.iter().for_each(|error| output::mention(&format!("ignored for device rates: {error}")));
    let rates = match learned.origin {
        RatesOrigin::Unknown => DeviceRates::of_data_sheet(target).unwrap_or(learned),
        RatesOrigin::Runs(_) | RatesOrigin::DataSheet => learned,
    };
    let of_plan = |plan: &Plan| {
        let experiment = NodeRates { link: plan.link, ..NodeRates::default() };
        rates.clone().with_node(stated.or(experiment).or(described), target)
    };
    plans.iter().map(of_plan).collect()
}

/// What the estimates of the shown rows rest on and leave out.
pub(super) struct Basis {
    sentences: Vec<String>,
    /// Whether any of them rests on assumed rates of the host or the link.
    assumes: bool,
}

impl Basis {
    pub(super) fn of(plans: &[Plan], rates: &[DeviceRates], rows: &[Row], out: &Path) -> Basis {
        let mut basis = Basis {
            sentences: rates.first().map(|rates| origin(rates, out)).into_iter().collect(),
            assumes: false,
        };
        for (plan, rates) in plans.iter().zip(rates).filter(|(_, rates)| rates.origin != RatesOrigin::Unknown)
        {
            basis.add(plan, rates, rows);
        }
        basis
    }

    /// The caution for the tables.
    pub(super) fn caution(&self) -> Option<&'static str> {
        self.assumes.then_some("rates of its host are assumed")
    }

    pub(super) fn text(&self) -> String {
        self.sentences.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    fn add(&mut self, plan: &Plan, rates: &DeviceRates, rows: &[Row]) {
        let shown = rows.iter().filter(|row| row.experiment == plan.experiment);
        let shown: HashSet<&str> = shown.map(|row| row.strategy.as_str()).collect();
        let mut unknown: Vec<(UnknownRate, Vec<&str>)> = Vec::new();
        let (mut transfers, mut computes_on_host, mut most_ranks) = (false, false, 1);
        for run in plan.runs.iter().filter(|run| shown.contains(run.strategy.as_str())) {
            let (Ok(config), Some(prediction)) = (&run.config, &run.prediction) else { continue };
            let StepWork { tasks, to_host_bytes, to_device_bytes, exchanges, .. } = &prediction.work;
            match rates.step_ms(&prediction.work, config, &plan.target) {
                Ok(_) => {
                    transfers |= to_host_bytes + to_device_bytes > 0;
                    if !exchanges.is_empty() {
                        most_ranks = most_ranks.max(config.ranks());
                    }
                    computes_on_host |= tasks.iter().any(|task| is_on_host(task, &plan.target));
                }
                Err(rate) => {
                    let at = unknown.iter().position(|(other, _)| *other == rate).unwrap_or_else(|| {
                        unknown.push((rate, Vec::new()));
                        unknown.len() - 1
                    });
                    if !unknown[at].1.contains(&run.strategy.as_str()) {
                        unknown[at].1.push(&run.strategy);
                    }
                }
            }
        }
        if let (true, DeviceKind::Cuda, Some(link)) = (transfers, plan.target.kind, rates.node.link) {
            self.say(match rates.stated.link {
                Some(_) => format!("Transfers to the host and back take {link} in each direction."),
                None => format!(
                    "Transfers to the host and back are assumed to reach the link's peak, {link} in each direction; \
                     `--link` sets another rate."
                ),
            });
            self.assumes |= rates.stated.link.is_none();
        }
        if let (true, None, Some(bandwidth), Some(flops)) =
            (computes_on_host, rates.stated.host_bandwidth, rates.node.host_bandwidth, rates.node.host_flops)
        {
            self.say(format!(
                "The card's host is assumed to reach {bandwidth} and {flops} on {HOST_THREADS} thread, as many as its \
                 operations run on; `host_bandwidth` and `host_flops` in a target file set other rates."
            ));
            self.assumes = true;
        }
        if let Some(sentence) = exchanges_between(most_ranks, rates, &plan.target) {
            self.say(sentence);
        }
        let reasons = unknown.iter().map(|(rate, strategies)| format!("{} ({rate})", strategies.join(", ")));
        let reasons: Vec<String> = reasons.collect();
        if !reasons.is_empty() {
            self.say(format!("Without an estimate, and not compared in time: {}.", reasons.join("; ")));
        }
    }

    fn say(&mut self, sentence: String) {
        if !self.sentences.contains(&sentence) {
            self.sentences.push(sentence);
        }
    }
}

/// The rates of exchanges between this number of ranks, each with its origin.
pub(super) fn exchanges_between(ranks: usize, rates: &DeviceRates, target: &Target) -> Option<String> {
    let NodeRates { cards, card_link, network, .. } = rates.node;
    let cards = cards.filter(|_| ranks > 1 && target.kind == DeviceKind::Cuda)?;
    let basis = |is_stated: bool| if is_stated { "target file" } else { "data sheet, not measured" };
    let stated = [("cards", rates.stated.cards.is_some()), ("card_link", rates.stated.card_link.is_some())];
    let [of_cards, of_link] = stated.map(|(_, is_stated)| basis(is_stated));
    let mut parts = vec![format!("{} in a node ({of_cards})", counted(cards, "card"))];
    if let Some(link) = card_link.filter(|_| cards > 1) {
        parts.push(format!("{link} per card and direction ({of_link})"));
    }
    if let Some(network) = network.filter(|_| ranks > cards) {
        parts.push(format!("{network} per card and direction between nodes"));
    }
    let others: Vec<String> = stated
        .iter()
        .filter(|(key, is_stated)| !is_stated && (*key == "cards" || cards > 1))
        .map(|(key, _)| format!("`{key}`"))
        .collect();
    let advice = match others.as_slice() {
        [] => String::new(),
        [key] => format!(" {key} in a target file sets another value."),
        keys => format!(" {} in a target file set other values.", keys.join(" and ")),
    };
    Some(format!(
        "Exchanges between ranks are estimated from {}. They overlap with the computation of the same phase; their \
         latency is not counted.{advice}",
        parts.join(", ")
    ))
}

fn origin(rates: &DeviceRates, out: &Path) -> String {
    let out = out.display();
    let estimates = match rates.origin {
        RatesOrigin::Unknown => {
            return format!("No times are estimated: folder {out} has no run of this device. `runner sweep` adds one.");
        }
        RatesOrigin::Runs(1) => format!("Times are estimates from the rates of the run of this device in {out}."),
        RatesOrigin::Runs(runs) => {
            format!("Times are estimates from the rates of {runs} runs of this device in {out}.")
        }
        RatesOrigin::DataSheet => {
            "Times are estimates from a data sheet's peak rates, which no program reaches: use them to rank only."
                .to_owned()
        }
    };
    format!("{estimates} They leave out kernel launches, waiting for data and emptying a cache.")
}
