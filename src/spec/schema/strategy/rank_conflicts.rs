//! Values of keys that `parallel` excludes, and those that have no effect without it.

use super::conflicts::{Conflict, ConflictMessage, message};
use super::{ActivationOffload, Allocator, Init, Parallel, Reduce, Rounding, Shard};
use crate::reader::declare::KeywordEnum;
use crate::reader::tree::quoted;
use crate::schema::model::Sequential;
use crate::schema::optimizer::UpdateGroup;
use crate::schema::resolved::RunConfig;
use base::units::Bytes;
use ops::Rule;

pub const CONFLICTS: &[Conflict] = &[
    Conflict {
        keys: &["strategy.parallel", "train.batch_size"],
        check: |run| has_fewer_samples("train.batch_size", Some(run.train.batch_size), run),
    },
    Conflict {
        keys: &["strategy.parallel", "evaluation.batch_size"],
        check: |run| has_fewer_samples("evaluation.batch_size", run.evaluation_batch(), run),
    },
    Conflict {
        keys: &["strategy.parallel", "strategy.graph"],
        check: |run| {
            (run.ranks() > 1 && run.strategy.graph).then(|| {
                message(
                    "graph = true replays the work of one device; parallel.data exchanges gradients with others",
                    "use graph = false",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.parallel", "strategy.allocator"],
        check: |run| {
            (run.ranks() > 1 && run.strategy.allocator != Allocator::Arena).then(|| {
                message("parallel.data needs memory that is planned ahead", "use allocator = \"arena\"")
            })
        },
    },
    Conflict {
        keys: &["strategy.parallel", "strategy.offload.activations", "train.batch_size"],
        check: |run| {
            let is_threshold =
                matches!(run.strategy.offload.activations, ActivationOffload::From(Bytes(1..)));
            (is_threshold && !run.train.batch_size.is_multiple_of(run.ranks())).then(|| {
                message(
                    "ranks with fewer samples have smaller activations, of which fewer reach the size that offload.activations moves",
                    "use activations = true, or a batch_size that parallel.data divides",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.parallel", "data.text.pad_to"],
        check: |run| {
            (run.ranks() > 1 && run.data.batch_multiple().is_some()).then(|| {
                message(
                    "pad_to = \"batch\" gives each rank another length; this version plans ranks of one length",
                    "use pad_to = \"context\"",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.parallel", "model.sequential.layers"],
        check: |run| {
            let has_batch_norm = run.model.sequential().is_some_and(Sequential::has_batch_norm);
            (run.ranks() > 1 && has_batch_norm).then(|| {
                message(
                    "batch_norm of several ranks needs statistics of all their samples, which this version does not exchange",
                    "use group_norm, or parallel.data = 1",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.parallel", "train.optimizer"],
        check: |run| {
            let groups = run.train.optimizer.groups();
            let needs_tensors =
                |group: &UpdateGroup| matches!(group.rule, Rule::Muon(_) | Rule::Adafactor(_));
            (divides_states(run) && groups.iter().any(needs_tensors)).then(|| {
                message(
                    format!(
                        "{} splits tensors at arbitrary elements; muon and adafactor need whole ones",
                        shard(run)
                    ),
                    "use shard = \"none\", or adamw, adam, lion or sgd",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.parallel", "strategy.rounding"],
        check: |run| {
            (divides_states(run) && run.strategy.rounding == Rounding::Stochastic).then(|| {
                message(
                    format!(
                        "{} splits tensors at arbitrary elements; stochastic rounding numbers them",
                        shard(run)
                    ),
                    "use shard = \"none\", or rounding = \"nearest\"",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.parallel", "strategy.offload", "strategy.place"],
        check: |run| {
            let offload = run.strategy.offload;
            let is_on_host = offload.parameters || offload.optimizer || !run.strategy.place.is_empty();
            ((divides_states(run) || run.shards_parameters()) && is_on_host).then(|| {
                message(
                    format!("{} keeps parameters and states on the device", shard(run)),
                    "use shard = \"none\", or no place and no offload of parameters and optimizer",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.parallel", "strategy.accumulate", "train.batch_size"],
        check: |run| {
            let exchanges = run.shards_gradients() && run.trains() || run.shards_parameters();
            let (ranks, samples) = (run.ranks(), run.train.batch_size);
            if !exchanges || samples < ranks {
                return None;
            }
            // The first rank has the most samples, the last has the least.
            let [most, least] = [0, ranks - 1].map(|index| run.of_rank(index).into_owned());
            let [first, last] = [&most, &least].map(|rank| rank.micro_batches());
            (first != last).then(|| {
                let [most, least] = [most, least].map(|rank| rank.train.batch_size);
                let up = samples.next_multiple_of(ranks);
                message(
                    format!(
                        "{} needs equal numbers of micro-batches: a rank with {most} samples has {first}, one with {least} has {last}",
                        shard(run)
                    ),
                    format!("use accumulate = 1, batch_size = {up}, or shard = \"optimizer\""),
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.parallel", "strategy.init"],
        check: |run| {
            (run.shards_parameters() && run.strategy.init == Init::Lazy).then(|| {
                message(
                    "init = \"lazy\" creates parameters at their first use; parallel.shard = \"parameters\" gathers them before",
                    "use init = \"device\", which has one layer's whole parameters in memory at a time",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.parallel.reduce"],
        check: |run| {
            let Parallel { shard, reduce, .. } = run.strategy.parallel;
            let (what, way_out) = match (reduce, shard) {
                (Reduce::Micro, _) | (_, Shard::Parameters) => return None,
                (Reduce::Step, Shard::Gradients) => (
                    "keeps whole gradients on each rank until the last micro-batch; shard = \"gradients\" divides them",
                    "use shard = \"optimizer\", which sums once a step, or reduce = \"micro\"",
                ),
                (Reduce::Step, Shard::None | Shard::Optimizer) => (
                    "has no effect: gradients that are not divided are summed once a step",
                    "use shard = \"parameters\", or leave out reduce",
                ),
            };
            Some(message(format!("parallel.reduce = {} {what}", quoted(reduce.keyword())), way_out))
        },
    },
    Conflict {
        keys: &["strategy.parallel.keep_gathered"],
        check: |run| {
            let Parallel { shard, keep_gathered, .. } = run.strategy.parallel;
            (keep_gathered && shard != Shard::Parameters).then(|| {
                message(
                    "parallel.keep_gathered = true has no effect: each rank has all parameters",
                    "use shard = \"parameters\", or keep_gathered = false",
                )
            })
        },
    },
    Conflict {
        keys: &["strategy.parallel.ahead"],
        check: |run| {
            let Parallel { shard, ahead, .. } = run.strategy.parallel;
            let default = Parallel::default().ahead;
            (ahead != default && shard != Shard::Parameters).then(|| {
                message(
                    format!("parallel.ahead = {ahead} has no effect: each rank has all parameters"),
                    format!("use shard = \"parameters\", or ahead = {default}"),
                )
            })
        },
    },
];

/// Fails if a batch has fewer samples than there are ranks.
fn has_fewer_samples(key: &str, samples: Option<usize>, run: &RunConfig) -> Option<ConflictMessage> {
    let (ranks, samples) = (run.ranks(), samples?);
    (samples < ranks).then(|| {
        message(
            format!("parallel.data = {ranks} needs a sample for each rank; {key} = {samples}"),
            format!("use parallel.data = {samples}, or {key} = {ranks}"),
        )
    })
}

/// Whether each rank updates its share.
fn divides_states(run: &RunConfig) -> bool {
    run.shards_states() && run.trains()
}

fn shard(run: &RunConfig) -> String {
    format!("parallel.shard = {}", quoted(run.strategy.parallel.shard.keyword()))
}
