//! What the strategies of a run really did, in words, from what the engine counted.

use super::counts::Counts;
use super::measured::Loading;
use super::products::ProductSources;
use base::units::{Bytes, Count};
use compile::Program;
use spec::{EmptyCache, Optimizer, RunConfig, Strategy};

/// What a run is, for what it did to be told against it.
#[derive(Clone, Copy)]
pub(super) struct Run {
    /// Micro-batches of a step, as the run says.
    pub(super) micro_batches: usize,
    /// Numbers in the model's parameters.
    pub(super) parameters: u64,
    /// Whether the optimizer is AdamW, which is not told.
    pub(super) has_usual_optimizer: bool,
    /// Whether values are kept by name: what that takes is told.
    pub(super) keeps: bool,
    /// Whether a cache is emptied: what that gives back is told, even if it is nothing.
    pub(super) empties_cache: bool,
    /// The share of copies' time in which nothing waited for them, where that is known.
    pub(super) copies_hidden: Option<f64>,
    /// The share of tokens that were padding, where some may be.
    pub(super) padding: Option<f64>,
    /// How batches came, where the run says how they are to.
    pub(super) loading: Option<Loading>,
}

impl Run {
    /// Of a program, before it is known how copies went.
    pub(super) fn of(config: &RunConfig, program: &Program) -> Run {
        let Strategy { accumulate, keep, empty_cache, .. } = &config.strategy;
        Run {
            micro_batches: *accumulate,
            parameters: program.parameter_count(|_| true),
            has_usual_optimizer: matches!(config.train.optimizer, Optimizer::AdamW(_)),
            keeps: !keep.is_empty(),
            empties_cache: *empty_cache != EmptyCache::Never,
            copies_hidden: None,
            padding: None,
            loading: None,
        }
    }
}

/// One step's share of what was counted between two moments, and one evaluation's; of skipped steps, all. And from where
/// the choice of algorithms came.
pub(super) fn effects(before: &Counts, after: &Counts, run: Run, products: Option<ProductSources>) -> String {
    let steps = (after.steps - before.steps).max(1);
    let evaluations = (after.evaluations - before.evaluations).max(1);
    let per_step = |count: fn(&Counts) -> u64| (count(after) - count(before)) / steps;
    let mut parts = Vec::new();
    let recomputed = per_step(|counts| counts.recompute_flops);
    if recomputed > 0 {
        let once = per_step(|counts| counts.flops) - recomputed;
        parts.push(more_flops(recomputed, once));
    }
    let again = per_step(|counts| counts.computed_again);
    if again > 0 && recomputed == 0 {
        parts.push(format!("{again} computed again"));
    }
    parts.extend(after.updated.told(&before.updated, steps, run.has_usual_optimizer));
    let micro_batches = per_step(|counts| counts.micro_batches);
    if micro_batches > 1 {
        parts.push(micro_batches_of(micro_batches as usize, run.micro_batches));
    }
    parts.extend(run.padding.map(|share| format!("{:.0}% padding", 100.0 * share)));
    if let Some(Loading { workers, waited, hidden }) = run.loading {
        parts.push(format!("{} of batches", Bytes(per_step(|counts| counts.batch_bytes))));
        if workers > 0 {
            parts.push(format!("{workers} {}", if workers == 1 { "worker" } else { "workers" }));
        }
        let ahead = after.batches_ahead - before.batches_ahead;
        if ahead > 0 {
            parts.push(format!("{:.0}% uploaded ahead", 100.0 * ahead as f64 / steps as f64));
        }
        parts.push(format!("{:.1}% waiting for data", 100.0 * waited));
        parts.extend(hidden.map(|share| format!("{:.0}% of loading hidden", 100.0 * share)));
    }
    let early = per_step(|counts| counts.updates_in_backward);
    if early > 0 {
        parts.push(format!("{early} updates in backward"));
    }
    let untrained = run.parameters.saturating_sub(per_step(|counts| counts.trained_parameters));
    if untrained > 0 {
        parts.push(untrained_parameters(untrained, run.parameters));
    }
    let casts = per_step(|counts| counts.casts);
    if casts > 0 {
        parts.push(format!("{casts} casts"));
    }
    let dequantized = per_step(|counts| counts.dequantized);
    if dequantized > 0 {
        parts.push(format!("{dequantized} dequantized"));
    }
    let on_host = per_step(|counts| counts.host_flops);
    if on_host > 0 {
        let all = per_step(|counts| counts.flops);
        parts.push(format!("{:.0}% of FLOPs on the host", 100.0 * on_host as f64 / all as f64));
    }
    let [to, back] = [per_step(|counts| counts.bytes_to_host), per_step(|counts| counts.bytes_to_device)];
    if to + back > 0 {
        parts.push(format!("{} to the host and {} back", Bytes(to), Bytes(back)));
        parts.extend(run.copies_hidden.map(|share| format!("{:.0}% of copies hidden", 100.0 * share)));
    }
    let parameters = per_step(|counts| counts.parameter_bytes_in_16_bits);
    if parameters > 0 {
        parts.push(format!("{} of parameters in 16 bits", Bytes(parameters)));
    }
    if after.made_late > 0 {
        parts.push(format!("{} values made at their first use", after.made_late));
    }
    // Of all the run: its start is none of the steps.
    if after.bytes_at_start > 0 {
        parts.push(format!("{} copied at the start", Bytes(after.bytes_at_start)));
    }
    let in_16_bits = per_step(|counts| counts.state_bytes_in_16_bits);
    if in_16_bits > 0 {
        parts.push(format!("{} of states in 16 bits", Bytes(in_16_bits)));
    }
    let in_8_bits = per_step(|counts| counts.state_bytes_in_8_bits);
    if in_8_bits > 0 {
        parts.push(format!("{} of states in 8 bits", Bytes(in_8_bits)));
    }
    let random = per_step(|counts| counts.random_roundings);
    if random > 0 {
        parts.push(format!("{random} numbers rounded at random"));
    }
    let slices = per_step(|counts| counts.loss_slices);
    if slices > 0 {
        parts.push(format!("{slices} slices of the loss"));
    }
    let replays = per_step(|counts| counts.replays);
    if replays > 0 {
        parts.push(format!("{replays} graphs replayed"));
    }
    let skipped = after.skipped_steps - before.skipped_steps;
    if skipped > 0 {
        parts.push(format!("{skipped} {} skipped", if skipped == 1 { "step" } else { "steps" }));
    }
    let zeroed = per_step(|counts| counts.zeroed_bytes);
    if zeroed > 0 {
        parts.push(format!("{} zeroed", Bytes(zeroed)));
    }
    let late = per_step(|counts| counts.late_frees);
    if late > 0 {
        let bytes = Bytes(per_step(|counts| counts.late_freed_bytes));
        let told = if run.keeps { format!(" ({bytes})") } else { String::new() };
        parts.push(format!("{} held longer{told}", values(late)));
    }
    let kept = (after.late_frees_in_evaluation - before.late_frees_in_evaluation) / evaluations;
    if kept > 0 {
        parts.push(format!("{} kept in evaluation", values(kept)));
    }
    let leaked = per_step(|counts| counts.leaked_bytes);
    if leaked > 0 {
        parts.push(leaked_each_step(leaked));
    }
    let cache = after.cache.since(&before.cache);
    if cache.allocations > 0 {
        parts.push(format!("{} splits", cache.splits / steps));
        parts.push(format!("{:.0}% cache hits", 100.0 * cache.hits as f64 / cache.allocations as f64));
    }
    let requests = per_step(|counts| counts.requests);
    if requests > 0 {
        parts.push(format!("{requests} requests"));
    }
    let returned = cache.returned_bytes / steps;
    if returned > 0 || run.empties_cache {
        parts.push(format!("{} returned", Bytes(returned)));
    }
    parts.extend(products.map(algorithms));
    parts.join(", ")
}

fn values(count: u64) -> String {
    format!("{count} {}", if count == 1 { "value" } else { "values" })
}

/// `1.2 MiB leaked each step`
pub fn leaked_each_step(bytes: u64) -> String {
    format!("{} leaked each step", Bytes(bytes))
}

/// `4 micro-batches`, or `4 micro-batches (not 5)` where fewer than were asked for are the whole batch.
pub fn micro_batches_of(count: usize, asked: usize) -> String {
    let contrast = if count == asked { String::new() } else { format!(" (not {asked})") };
    format!("{count} micro-batches{contrast}")
}

/// `+23% FLOPs`: what is computed again, against what is computed once.
pub fn more_flops(again: u64, once: u64) -> String {
    format!("+{:.0}% FLOPs", 100.0 * again as f64 / once as f64)
}

/// `12.4k parameters without gradients`, or of all of them `forward alone`
pub fn untrained_parameters(numbers: u64, all: u64) -> String {
    match numbers {
        _ if numbers == all => "forward alone".to_owned(),
        _ => format!("{} parameters without gradients", Count(numbers)),
    }
}

/// `algorithms: 14 timed + 2 cached`
fn algorithms(products: ProductSources) -> String {
    let ProductSources { timed, cached, stored, untimed } = products;
    let sources = [(timed, "timed"), (cached, "cached"), (stored, "stored"), (untimed, "untimed")];
    let told = sources.iter().filter(|(count, _)| *count > 0).map(|(count, how)| format!("{count} {how}"));
    format!("algorithms: {}", told.collect::<Vec<_>>().join(" + "))
}
