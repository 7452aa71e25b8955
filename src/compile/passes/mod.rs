//! The passes, in their fixed order, with the verifier after each.

pub(crate) mod annotations;
pub(crate) mod build;
mod collect;
mod collectives;
pub(crate) mod copies;
mod deallocate;
mod differentiate;
mod dtypes;
mod empty_cache;
mod events;
mod fuse_casts;
mod gathers;
mod graph_capture;
mod host_buffers;
mod in_place;
mod inputs;
mod interval_packing;
pub(crate) mod lazy_init;
mod leaks;
pub(crate) mod offsets;
mod placement;
mod sections;
mod shard_layout;
pub(crate) mod slices;
mod storage;
mod update;
pub(crate) mod workspaces;

use device::Target;
use graph::Graphs;
use spec::RunConfig;

use super::Verification;
use super::ir::Program;
use super::recompute_plan::RecomputePlan;
use super::verify::{Violation, verify};
use annotations::Annotations;

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
const PASSES: [Pass; 21] = [
    // Slices of the loss (`loss_chunks`).
    Pass { name: "choose operations", run: Some(slices::slice) },
    // Values get their dtypes. Casts precede differentiation, so that they are differentiated too.
    Pass { name: "dtypes and casts", run: Some(dtypes::assign) },
    // The device and the pool of each layer.
    Pass { name: "placement", run: Some(placement::place) },
    // The part of each bucket that this rank has.
    Pass { name: "shard layout", run: Some(shard_layout::lay_out) },
    Pass { name: "annotations", run: Some(annotations::annotate) },
    Pass { name: "differentiate", run: Some(differentiate::differentiate) },
    // Before sections are duplicated for further micro-batches.
    Pass { name: "fuse casts", run: Some(fuse_casts::fuse) },
    // Shares of the sums of gradients over all ranks, by micro-batch.
    Pass { name: "scatter", run: Some(collectives::scatter) },
    Pass { name: "micro-batch sections", run: Some(sections::split) },
    // Sums of a step's gradients over all ranks.
    Pass { name: "reduce", run: Some(collectives::reduce) },
    Pass { name: "scale, clip, update", run: Some(update::update) },
    // Transfers of operands whose pool is on the other device, and of those that are divided among ranks.
    Pass { name: "copies", run: Some(copies::insert) },
    // Outputs that an evaluation collects, at the end of its forward passes.
    Pass { name: "collect", run: Some(collect::collect) },
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

/// Builds the program of a rank's configuration of a run and runs all passes on it.
pub(crate) fn run_passes(
    graphs: &Graphs,
    config: &RunConfig,
    run: &RunConfig,
    target: &Target,
    recompute_plan: &RecomputePlan,
    verification: Verification,
    change_annotations: &dyn Fn(&mut Annotations, &[graph::Scope]),
) -> Result<Program, Violation> {
    let program = build::build(graphs, config, run);
    let mut draft = Draft {
        config,
        target,
        program,
        recompute_plan,
        annotations: Annotations::default(),
        change_annotations,
    };
    let passes = PASSES.iter().filter_map(|pass| pass.run.map(|run| (pass.name, run)));
    let check = |program: &Program, pass| match verification {
        Verification::AfterEveryPass => verify(program).map_err(|violation| violation.after(pass)),
        Verification::Never => Ok(()),
    };
    check(&draft.program, "build")?;
    for (name, run) in passes {
        run(&mut draft);
        check(&draft.program, name)?;
    }
    Ok(draft.program)
}
