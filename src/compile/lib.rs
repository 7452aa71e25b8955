//! Graph and strategies to program: each pass in its fixed place, the verifier between all of them.
//!
//! Strategies annotate; one scheduler emits. No pass looks for patterns in another strategy's output.

mod build;
mod compiler;
mod copies;
mod differentiate;
mod dtypes;
mod empty_cache;
mod events;
mod first_use;
mod fuse_casts;
mod instruction;
mod leaks;
mod marks;
mod occupied;
mod place;
mod placement;
mod program;
mod release;
mod reuse;
mod sections;
mod segments;
mod slices;
mod storage;
mod units;
mod update;
mod value;
mod verify;
mod workspaces;

pub use compiler::{Compiled, Compiler};
pub use first_use::Opened;
pub use instruction::{Action, Instruction};
pub use program::{
    Bucket, BucketState, Exchange, LossScaling, Parameter, Program, Results, Section, SectionKind, Sliced,
    Spillable, Stage, Types,
};
pub use units::{Again, Unit, Units, blocks};
pub use value::{Batches, Form, Like, Part, Value, View};
pub use verify::{Invariant, Violation, verify};

use std::borrow::Cow;

use device::{Rank, Target};
use graph::Graphs;
pub use marks::Marks;
use spec::RunConfig;

/// A program on its way, with what it is compiled for and the marks that strategies left on it.
struct Draft<'a> {
    config: &'a RunConfig,
    target: &'a Target,
    program: Program,
    /// What is computed again.
    units: &'a Units,
    marks: Marks,
    /// What changes the marks that the strategy leaves.
    change_marks: &'a dyn Fn(&mut Marks, &[graph::Scope]),
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
    Pass { name: "keep, recompute and offload marks", run: Some(marks::mark) },
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
    Pass { name: "first uses", run: Some(first_use::make_late) },
    Pass { name: "events", run: Some(events::order) },
    Pass { name: "release points", run: Some(release::release) },
    // Once all has been freed that a section frees.
    Pass { name: "empty cache", run: Some(empty_cache::empty) },
    Pass { name: "in-place reuse", run: Some(reuse::reuse) },
    Pass { name: "offsets", run: Some(place::place) },
    // Stretches that a device may capture and replay.
    Pass { name: "graph segments", run: Some(segments::mark) },
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
    units: &Units,
    verified: bool,
) -> Result<Program, Violation> {
    run_passes(graphs, config, target, units, verified, &|_, _| {})
}

/// The same, verified, with other marks than the strategy leaves: for tests of marks that no key makes.
///
/// # Errors
/// As those of [`compile`].
pub fn compile_marked(
    graphs: &Graphs,
    config: &RunConfig,
    target: &Target,
    units: &Units,
    change: impl Fn(&mut Marks, &[graph::Scope]),
) -> Result<Program, Violation> {
    run_passes(graphs, config, target, units, true, &change)
}

/// A run's program, verified. A budget, which the planner resolves, recomputes all blocks here.
#[cfg(test)]
fn compile_run(config: &RunConfig, target: &Target) -> Result<Program, Violation> {
    let graphs = rank_graphs(config, target);
    compile(&graphs, config, target, &units_of(config, &graphs), true)
}

#[cfg(test)]
fn units_of(config: &RunConfig, graphs: &Graphs) -> Units {
    let units = |recompute| Units::of(recompute, &graphs.full.scopes);
    let whole = spec::Recompute::Block;
    units(config.strategy.recompute).or_else(|_| units(whole)).expect("a block is no budget")
}

fn run_passes(
    graphs: &Graphs,
    config: &RunConfig,
    target: &Target,
    units: &Units,
    verified: bool,
    change_marks: &dyn Fn(&mut Marks, &[graph::Scope]),
) -> Result<Program, Violation> {
    let own = of_rank(config, target);
    let program = build::build(graphs, &own, config.train.batch_size);
    let mut draft = Draft { config: &own, target, program, units, marks: Marks::default(), change_marks };
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
