//! Compiles a graph and its strategies to a program: passes in a fixed order, with the verifier after each.
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
mod offsets;
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
    Bucket, BucketState, HostBuffers, LossScaling, LossSlices, Offloadable, OperandTypes, Parameter, Program,
    Results, Section, SectionKind, Stage,
};
pub use recompute_plan::{RecomputePlan, RecomputePolicy, RecomputeRegion, blocks};
pub use value::{BatchBuffer, ShapeSource, SubRange, Value, Variant, View};
pub use verify::{Invariant, Violation, verify};

use std::borrow::Cow;

pub use annotations::Annotations;
use device::{Rank, Target};
use graph::Graphs;
use spec::RunConfig;

/// A program under compilation, with its configuration and the annotations of the strategies.
struct Draft<'a> {
    config: &'a RunConfig,
    target: &'a Target,
    program: Program,
    recompute_plan: &'a RecomputePlan,
    annotations: Annotations,
    /// Changes the annotations after the strategies have set them (for tests).
    change_annotations: &'a dyn Fn(&mut Annotations, &[graph::Scope]),
}

/// One step of compilation.
struct Pass {
    name: &'static str,
    /// `None`: reserved place of a pass that no strategy needs yet.
    run: Option<fn(&mut Draft)>,
}

/// The fixed order of the passes. Building the forward pass comes before them.
const PASSES: [Pass; 19] = [
    // Slices of the loss (`loss_chunks`).
    Pass { name: "choose operations", run: Some(slices::slice) },
    // Values get their dtypes. Casts precede differentiation, so that they are differentiated too.
    Pass { name: "dtypes and casts", run: Some(dtypes::assign) },
    // The device and the pool of each layer.
    Pass { name: "placement", run: Some(placement::place) },
    // The part of each bucket that this process owns.
    Pass { name: "shard layout", run: None },
    Pass { name: "annotations", run: Some(annotations::annotate) },
    Pass { name: "differentiate", run: Some(differentiate::differentiate) },
    // Before sections are duplicated for further micro-batches.
    Pass { name: "fuse casts", run: Some(fuse_casts::fuse) },
    Pass { name: "micro-batch sections", run: Some(sections::split) },
    // All-reduce, reduce-scatter and gather.
    Pass { name: "collectives", run: None },
    Pass { name: "scale, clip, update", run: Some(update::update) },
    // Transfers of operands whose pool is on the other device.
    Pass { name: "copies", run: Some(copies::insert) },
    Pass { name: "workspaces", run: Some(workspaces::add) },
    // Instructions that run in the first iteration of a section only.
    Pass { name: "lazy initialisation", run: Some(lazy_init::initialise_lazily) },
    Pass { name: "events", run: Some(events::order) },
    Pass { name: "deallocate", run: Some(deallocate::deallocate) },
    // After a section's last deallocation.
    Pass { name: "empty cache", run: Some(empty_cache::empty) },
    Pass { name: "in-place", run: Some(in_place::reuse) },
    Pass { name: "offsets", run: Some(offsets::assign) },
    // Ranges of instructions that a device can capture and replay.
    Pass { name: "graph capture", run: Some(graph_capture::find_ranges) },
];

/// The configuration of the target's rank: the run's, with the rank's share of the batch.
fn rank_config<'a>(config: &'a RunConfig, target: &Target) -> Cow<'a, RunConfig> {
    if target.rank == Rank::ALONE {
        return Cow::Borrowed(config);
    }
    let mut own = config.clone();
    own.train.batch_size = target.rank.samples(config.train.batch_size).len();
    Cow::Owned(own)
}

/// The forward passes that a target's rank runs.
pub fn rank_graphs(config: &RunConfig, target: &Target) -> Graphs {
    Graphs::of(&rank_config(config, target))
}

/// Compiles the given forward passes with a recompute plan. `verified`: run the verifier after every pass.
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

/// [`compile`], verified, with changed annotations: for tests of annotations that no key produces.
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

/// A run's program, verified. A recompute budget, which only the planner resolves, recomputes all blocks here.
#[cfg(test)]
fn compile_run(config: &RunConfig, target: &Target) -> Result<Program, Violation> {
    let graphs = rank_graphs(config, target);
    compile(&graphs, config, target, &recompute_plan_of(config, &graphs), true)
}

#[cfg(test)]
fn recompute_plan_of(config: &RunConfig, graphs: &Graphs) -> RecomputePlan {
    let recompute_plan = |recompute| RecomputePlan::of(recompute, &graphs.full.scopes);
    let all_blocks = spec::Recompute::Block;
    recompute_plan(config.strategy.recompute)
        .or_else(|_| recompute_plan(all_blocks))
        .expect("only a budget needs the planner")
}

fn run_passes(
    graphs: &Graphs,
    config: &RunConfig,
    target: &Target,
    recompute_plan: &RecomputePlan,
    verified: bool,
    change_annotations: &dyn Fn(&mut Annotations, &[graph::Scope]),
) -> Result<Program, Violation> {
    let own = rank_config(config, target);
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
    let mut last_pass = "build";
    for (name, run) in passes {
        if verified {
            verify(&draft.program).map_err(|violation| violation.after(last_pass))?;
        }
        run(&mut draft);
        last_pass = name;
    }
    if verified {
        verify(&draft.program).map_err(|violation| violation.after(last_pass))?;
    }
    Ok(draft.program)
}
