//! The effects of a run's strategy in words, from the counts of the engine.

use super::counts::Counts;
use super::measured::Loading;
use crate::prepare::MatmulAlgorithmSources;
use base::units::{Bytes, Count};
use compile::Program;
use device::Pool;
use spec::{EmptyCache, Leak, Optimizer, RunConfig, Strategy};

/// What a run was configured to do, and figures that are not among the counts: they decide which effects are shown.
#[derive(Clone, Copy)]
pub(crate) struct EffectsContext {
    /// Configured micro-batches of a step.
    pub(crate) micro_batches: usize,
    /// Elements of the model's parameters.
    pub(crate) parameters: u64,
    /// Elements of the parameters that other ranks update.
    pub(crate) updated_by_others: u64,
    /// Whether the optimizer is AdamW, which is not mentioned.
    pub(crate) has_default_optimizer: bool,
    /// Whether the strategy keeps named values: their bytes are shown.
    pub(crate) keeps_values: bool,
    /// Whether the cache is emptied: the returned bytes are shown, even 0.
    pub(crate) empties_cache: bool,
    /// The mistake whose leak is shown.
    pub(crate) leak: Option<Leak>,
    /// The share of copy time that computation did not wait for, if known.
    pub(crate) copies_hidden: Option<f64>,
    /// Number of ranks that train together.
    pub(crate) ranks: usize,
    /// The share of exchange time that computation did not wait for, if known.
    pub(crate) exchange_hidden: Option<f64>,
    /// The share of tokens that were padding, if samples can be padded.
    pub(crate) padding: Option<f64>,
    /// How batches were loaded, if the strategy sets the loader.
    pub(crate) loading: Option<Loading>,
}

impl EffectsContext {
    /// From configuration and program, without the measured shares.
    pub(crate) fn new(config: &RunConfig, program: &Program) -> EffectsContext {
        let Strategy { accumulate, keep, empty_cache, leak, .. } = &config.strategy;
        EffectsContext {
            micro_batches: *accumulate,
            parameters: program.parameter_count(|_| true),
            updated_by_others: program.updated_by_others(),
            has_default_optimizer: matches!(config.train.optimizer, Optimizer::AdamW(_)),
            keeps_values: !keep.is_empty(),
            empties_cache: *empty_cache != EmptyCache::Never,
            leak: *leak,
            copies_hidden: None,
            ranks: config.ranks(),
            exchange_hidden: None,
            padding: None,
            loading: None,
        }
    }
}

/// `2 ranks, each sends 25 MiB`
pub fn exchanged_by_ranks(ranks: usize, sent: u64) -> String {
    format!("{ranks} ranks, each sends {}", Bytes(sent))
}

/// The effects between two states of the counters: per step, per evaluation, skipped steps in total. Ends with the
/// sources of the matmul algorithms.
pub(crate) fn effects(
    before: &Counts,
    after: &Counts,
    run: EffectsContext,
    products: Option<MatmulAlgorithmSources>,
) -> String {
    let steps = (after.steps - before.steps).max(1);
    let evaluations = (after.evaluations - before.evaluations).max(1);
    let passes = (after.evaluation_passes - before.evaluation_passes).max(1);
    let per_step = |count: fn(&Counts) -> u64| (count(after) - count(before)) / steps;
    let mut parts = Vec::new();
    if run.ranks > 1 {
        parts.push(exchanged_by_ranks(run.ranks, per_step(|counts| counts.sent_bytes)));
        parts.extend(run.exchange_hidden.map(|share| format!("{:.0}% of exchanges hidden", 100.0 * share)));
    }
    let recomputed = per_step(|counts| counts.recompute_flops);
    if recomputed > 0 {
        let once = per_step(|counts| counts.flops) - recomputed;
        parts.push(more_flops(recomputed, once));
    }
    let operations = per_step(|counts| counts.recomputed_operations);
    if operations > 0 && recomputed == 0 {
        parts.push(format!(
            "{operations} {} recomputed",
            if operations == 1 { "operation" } else { "operations" }
        ));
    }
    parts.extend(after.updated.summary(&before.updated, steps, run.has_default_optimizer));
    let micro_batches = per_step(|counts| counts.micro_batches);
    if micro_batches > 1 {
        parts.push(micro_batches_of(micro_batches as usize, run.micro_batches));
    }
    parts.extend(run.padding.map(|share| format!("{:.0}% padding", 100.0 * share)));
    if let Some(Loading { workers, waited, hidden }) = run.loading {
        parts.push(format!("{} per batch", Bytes(per_step(|counts| counts.batch_bytes))));
        if workers > 0 {
            parts.push(format!("{workers} {}", if workers == 1 { "worker" } else { "workers" }));
        }
        let ahead = after.batches_ahead - before.batches_ahead;
        if ahead > 0 {
            parts.push(format!("{:.0}% of batches prefetched", 100.0 * ahead as f64 / steps as f64));
        }
        parts.push(format!("{:.1}% waiting for data", 100.0 * waited));
        parts.extend(hidden.map(|share| format!("{:.0}% of loading hidden", 100.0 * share)));
    }
    let early = per_step(|counts| counts.updates_in_backward);
    if early > 0 {
        parts.push(format!("{early} updates in backward"));
    }
    let trained = per_step(|counts| counts.trained_parameters) + run.updated_by_others;
    let untrained = run.parameters.saturating_sub(trained);
    if untrained > 0 {
        parts.push(untrained_parameters(untrained, run.parameters));
    }
    let casts = per_step(|counts| counts.casts);
    if casts > 0 {
        parts.push(format!("{casts} casts"));
    }
    let dequantized = per_step(|counts| counts.dequantized);
    if dequantized > 0 {
        parts.push(format!(
            "{dequantized} {} dequantized",
            if dequantized == 1 { "weight" } else { "weights" }
        ));
    }
    let on_host = per_step(|counts| counts.host_flops);
    if on_host > 0 {
        let all = per_step(|counts| counts.flops);
        parts.push(format!("{:.0}% of FLOPs on the host", 100.0 * on_host as f64 / all as f64));
    }
    let [to_host, to_device] =
        [per_step(|counts| counts.bytes_to_host), per_step(|counts| counts.bytes_to_device)];
    if to_host + to_device > 0 {
        parts.push(format!("{} to the host and {} back", Bytes(to_host), Bytes(to_device)));
        parts.extend(run.copies_hidden.map(|share| format!("{:.0}% of copies hidden", 100.0 * share)));
    }
    let parameters = per_step(|counts| counts.parameter_bytes_in_16_bits);
    if parameters > 0 {
        parts.push(format!("{} of parameters in 16 bits", Bytes(parameters)));
    }
    if after.lazily_initialised > 0 {
        parts.push(format!("{} values initialised at first use", after.lazily_initialised));
    }
    // In total: start-up is not part of the steps.
    if after.bytes_at_start > 0 {
        parts.push(format!("{} copied at start-up", Bytes(after.bytes_at_start)));
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
        parts.push(format!("{random} numbers rounded stochastically"));
    }
    let slices = per_step(|counts| counts.loss_slices);
    if slices > 0 {
        parts.push(format!("{slices} loss slices"));
    }
    let replays = per_step(|counts| counts.replays);
    if replays > 0 {
        parts.push(format!("{replays} {}", if replays == 1 { "graph replay" } else { "graph replays" }));
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
        let size = if run.keeps_values { format!(" ({bytes})") } else { String::new() };
        parts.push(format!("{} freed late{size}", values(late)));
    }
    let kept = (after.late_frees_in_evaluation - before.late_frees_in_evaluation) / passes;
    if kept > 0 {
        parts.push(format!("{} freed late in evaluation", values(kept)));
    }
    let leaked = per_step(|counts| counts.leaked_bytes);
    if leaked > 0 {
        parts.push(leaked_each_step(leaked, run.leak));
    }
    let collected = |device: Pool| {
        let [before, after] = [before, after].map(|counts| counts.collected_bytes[device as usize]);
        (after - before) / evaluations
    };
    parts.extend(collected_each_evaluation(Pool::HOMES.map(collected)));
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

/// `1.2 MiB leaked per step: kept outputs`
pub fn leaked_each_step(bytes: u64, leak: Option<Leak>) -> String {
    let mistake = match leak {
        Some(Leak::Loss) => ": no .item()",
        Some(Leak::Logits) => ": kept outputs",
        Some(Leak::Graph) => ": retain_graph",
        None => "",
    };
    format!("{} leaked per step{mistake}", Bytes(bytes))
}

/// `58.2 GiB collected per evaluation`, by device.
pub fn collected_each_evaluation([device, host]: [u64; Pool::HOMES.len()]) -> Option<String> {
    let [on_device, on_host] = [device, host].map(Bytes);
    match (device, host) {
        (0, 0) => None,
        (_, 0) => Some(format!("{on_device} collected per evaluation")),
        (0, _) => Some(format!("{on_host} collected per evaluation on the host")),
        _ => Some(format!("{on_device} collected per evaluation, and {on_host} on the host")),
    }
}

/// `4 micro-batches`, or `4 micro-batches (not 5)` if fewer than the requested number cover the batch.
pub fn micro_batches_of(count: usize, asked: usize) -> String {
    let contrast = if count == asked { String::new() } else { format!(" (not {asked})") };
    format!("{count} micro-batches{contrast}")
}

/// `+23% FLOPs`: the recomputed share of a step without recomputation.
pub fn more_flops(recomputed: u64, once: u64) -> String {
    format!("+{:.0}% FLOPs", 100.0 * recomputed as f64 / once as f64)
}

/// `12.4k parameters without gradients`, or `forward only` if that is all of them
pub fn untrained_parameters(numbers: u64, all: u64) -> String {
    match numbers {
        _ if numbers == all => "forward only".to_owned(),
        _ => format!("{} parameters without gradients", Count(numbers)),
    }
}

/// `algorithms: 14 timed + 2 cached`
fn algorithms(products: MatmulAlgorithmSources) -> String {
    let MatmulAlgorithmSources { timed, cached, stored, untimed } = products;
    let sources = [(timed, "timed"), (cached, "cached"), (stored, "stored"), (untimed, "untimed")];
    let parts = sources.iter().filter(|(count, _)| *count > 0).map(|(count, how)| format!("{count} {how}"));
    format!("algorithms: {}", parts.collect::<Vec<_>>().join(" + "))
}
