//! Compiles a graph and its strategies to a program: passes in a fixed order, with the verifier after each.
//!
//! Strategies annotate; one scheduler emits. No pass looks for patterns in another strategy's output.

mod instantiate;
mod ir;
mod lengths;
mod passes;
mod recompute_plan;
mod verify;

pub use instantiate::{Compiled, Compiler};
pub use ir::{
    Action, BatchBuffer, Bucket, BucketState, HostBuffers, Instruction, LossScaling, LossSlices, Offloadable,
    OperandTypes, Parameter, Program, Results, Section, SectionKind, ShapeSource, Share, Stage, SubRange,
    Value, Variant, View, When,
};
pub use lengths::{LengthPrograms, StepSection, StepSections};
pub use passes::annotations::Annotations;
pub use passes::lazy_init::FirstIterations;
pub use recompute_plan::{RecomputePlan, RecomputePolicy, RecomputeRegion, blocks};
pub use verify::{Invariant, Violation, verify};

use std::borrow::Cow;

use device::Target;
use graph::Graphs;
use passes::run_passes;
use spec::RunConfig;

/// The device of a rank of the run.
fn rank_target<'a>(config: &RunConfig, target: &'a Target) -> Cow<'a, Target> {
    match config.ranks() {
        1 => Cow::Borrowed(target),
        ranks => Cow::Owned(target.of_rank(ranks)),
    }
}

/// The forward passes that a target's rank runs.
pub fn rank_graphs(config: &RunConfig, target: &Target) -> Graphs {
    Graphs::of(&config.of_rank(target.rank))
}

/// When the verifier runs during a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    AfterEveryPass,
    Never,
}

/// Compiles the given forward passes with a recompute plan.
///
/// # Errors
/// A violation of the program's invariants: a mistake in a pass, never in the configuration.
pub fn compile(
    graphs: &Graphs,
    config: &RunConfig,
    target: &Target,
    recompute_plan: &RecomputePlan,
    verification: Verification,
) -> Result<Program, Violation> {
    let target = &*rank_target(config, target);
    let mut program = run_passes(
        graphs,
        &config.of_rank(target.rank),
        config,
        target,
        recompute_plan,
        verification,
        &|_, _| {},
    )?;
    lengths::add_programs(&mut program, config, target, verification)?;
    Ok(program)
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
    run_passes(
        graphs,
        &config.of_rank(target.rank),
        config,
        &rank_target(config, target),
        recompute_plan,
        Verification::AfterEveryPass,
        &change,
    )
}

/// A run's program, verified. A recompute budget, which only the planner resolves, recomputes all blocks here.
#[cfg(test)]
fn compile_run(config: &RunConfig, target: &Target) -> Result<Program, Violation> {
    let graphs = rank_graphs(config, target);
    compile(&graphs, config, target, &recompute_plan_of(config, &graphs), Verification::AfterEveryPass)
}

#[cfg(test)]
fn recompute_plan_of(config: &RunConfig, graphs: &Graphs) -> RecomputePlan {
    let recompute_plan = |recompute| RecomputePlan::of(recompute, &graphs.full.scopes);
    let all_blocks = spec::Recompute::Block;
    recompute_plan(config.strategy.recompute)
        .or_else(|_| recompute_plan(all_blocks))
        .expect("only a budget needs the planner")
}
