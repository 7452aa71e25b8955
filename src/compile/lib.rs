//! Graph and strategies to program: each pass in its fixed place, the verifier between all of them.
//!
//! Strategies annotate; one scheduler emits. No pass looks for patterns in another strategy's output.

mod annotations;
mod build;
mod compiler;
mod copies;
mod deallocate;
mod differentiate;
mod dtypes;
mod empty_cache;
mod events;
mod fuse_casts;
mod graph_capture;
mod in_place;
mod instruction;
mod interval_packing;
mod lazy_init;
mod leaks;
mod place;
mod placement;
mod program;
mod recompute_plan;
mod sections;
mod slices;
mod storage;
mod update;
mod value;
mod verify;
mod workspaces;

pub use compiler::{Compiled, Compiler};
pub use instruction::{Action, Instruction};
pub use lazy_init::FirstIterations;
pub use program::{
    Bucket, BucketState, HostBuffers, LossScaling, Parameter, Program, Results, Section, SectionKind, Sliced,
    Spillable, Stage, Types,
};
pub use recompute_plan::{RecomputePlan, RecomputePolicy, RecomputeRegion, blocks};
pub use value::{Batches, Form, Like, Part, Value, View};
pub use verify::{Invariant, Violation, verify};

use std::borrow::Cow;

pub use annotations::Annotations;
use device::{Rank, Target};
use graph::Graphs;
use spec::RunConfig;

/// A program on its way, with what it is compiled for and the annotations that strategies left on it.
struct Draft<'a> {
    config: &'a RunConfig,
    target: &'a Target,
    program: Program,
    /// What is computed again.
    recompute_plan: &'a RecomputePlan,
    annotations: Annotations,
    /// What changes the annotations that the strategy leaves.
    change_annotations: &'a dyn Fn(&mut Annotations, &[graph::Scope]),
}

/// One step of compilation.
struct Pass {
    name: &'static str,
    /// `None`: the pass has its place, but no strategy that this version knows needs it.
    run: Option<fn(&mut Draft)>,
}

/// In this order, whatever the strategies. Building comes before them.
const PASSES: [Pass; 19] = [
    // Which form of an operation is used: slices of the loss.
    Pass { name: "choose operations", run: Some(slices::slice) },
    // Values take their dtypes; casts come before differentiation, so that they are differentiated too.
    Pass { name: "dtypes and casts", run: Some(dtypes::choose) },
    // Which device and pool a layer lives in.
    Pass { name: "placement", run: Some(placement::place) },
    // Which part of a bucket this process owns.
    Pass { name: "shard layout", run: None },
    Pass { name: "keep, recompute and offload annotations", run: Some(annotations::mark) },
    Pass { name: "differentiate", run: Some(differentiate::differentiate) },
    // Before sections are copied for further micro-batches.
    Pass { name: "fuse casts", run: Some(fuse_casts::fuse) },
    Pass { name: "micro-batch sections", run: Some(sections::split) },
    // All-reduce, reduce-scatter and gather.
    Pass { name: "collectives", run: None },
    Pass { name: "scale, clip, update", run: Some(update::update) },
    // What lives in another pool than it is computed with.
    Pass { name: "copies", run: Some(copies::bring) },
    Pass { name: "workspaces", run: Some(workspaces::add) },
    // What the first step makes that needs it.
    Pass { name: "first uses", run: Some(lazy_init::make_late) },
    Pass { name: "events", run: Some(events::order) },
    Pass { name: "release points", run: Some(deallocate::release) },
    // Once all has been freed that a section frees.
    Pass { name: "empty cache", run: Some(empty_cache::empty) },
    Pass { name: "in-place reuse", run: Some(in_place::reuse) },
    Pass { name: "offsets", run: Some(place::place) },
    // Stretches that a device may capture and replay.
    Pass { name: "graph segments", run: Some(graph_capture::mark) },
];

/// What a target's rank does of a run.
fn of_rank<'a>(config: &'a RunConfig, target: &Target) -> Cow<'a, RunConfig> {
    if target.rank == Rank::ALONE {
        return Cow::Borrowed(config);
    }
    let mut own = config.clone();
    own.train.batch_size = target.rank.samples(config.train.batch_size).len();
    Cow::Owned(own)
}

/// The forward passes that a target's rank runs.
pub fn rank_graphs(config: &RunConfig, target: &Target) -> Graphs {
    Graphs::of(&of_rank(config, target))
}

/// Compiles forward passes, a run's or any other, with a recompute plan. `verified`: the verifier runs after every pass.
///
/// # Errors
/// A violation of the program's invariants: a mistake in a pass, never in the configuration.
pub fn compile(
    graphs: &Graphs,
    config: &RunConfig,
    target: &Target,
    recompute_plan: &RecomputePlan,
    verified: bool,
) -> Result<Program, Violation> {
    run_passes(graphs, config, target, recompute_plan, verified, &|_, _| {})
}

/// The same, verified, with other annotations than the strategy leaves: for tests of annotations that no key makes.
///
/// # Errors
/// As those of [`compile`].
pub fn compile_annotated(
    graphs: &Graphs,
    config: &RunConfig,
    target: &Target,
    recompute_plan: &RecomputePlan,
    change: impl Fn(&mut Annotations, &[graph::Scope]),
) -> Result<Program, Violation> {
    run_passes(graphs, config, target, recompute_plan, true, &change)
}

/// A run's program, verified. A budget, which the planner resolves, recomputes all blocks here.
#[cfg(test)]
fn compile_run(config: &RunConfig, target: &Target) -> Result<Program, Violation> {
    let graphs = rank_graphs(config, target);
    compile(&graphs, config, target, &recompute_plan_of(config, &graphs), true)
}

#[cfg(test)]
fn recompute_plan_of(config: &RunConfig, graphs: &Graphs) -> RecomputePlan {
    let recompute_plan = |recompute| RecomputePlan::of(recompute, &graphs.full.scopes);
    let whole = spec::Recompute::Block;
    recompute_plan(config.strategy.recompute)
        .or_else(|_| recompute_plan(whole))
        .expect("a block is no budget")
}

fn run_passes(
    graphs: &Graphs,
    config: &RunConfig,
    target: &Target,
    recompute_plan: &RecomputePlan,
    verified: bool,
    change_annotations: &dyn Fn(&mut Annotations, &[graph::Scope]),
) -> Result<Program, Violation> {
    let own = of_rank(config, target);
    let program = build::build(graphs, &own, config.train.batch_size);
    let mut draft = Draft {
        config: &own,
        target,
        program,
        recompute_plan,
        annotations: Annotations::default(),
        change_annotations,
    };
    let passes = PASSES.iter().filter_map(|pass| pass.run.map(|run| (pass.name, run)));
    let mut last = "build";
    for (name, run) in passes {
        if verified {
            verify(&draft.program).map_err(|violation| violation.after(last))?;
        }
        run(&mut draft);
        last = name;
    }
    if verified {
        verify(&draft.program).map_err(|violation| violation.after(last))?;
    }
    Ok(draft.program)
}
