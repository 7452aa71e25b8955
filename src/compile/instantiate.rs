//! Reuses one program for many runs.
//!
//! A planner needs thousands of programs that differ in sizes alone. Each value of a program has a shape source, so
//! that the graph of another run can resize the program. A test over random runs checks that resizing and compiling
//! give the same program; builds with debug assertions verify every resized program.

use super::lengths;
use super::passes::build::{Layout, layouts};
use super::passes::{copies, offsets, slices, workspaces};
use super::verify::{Violation, verify};
use super::{RecomputePlan, Verification, compile, rank_target};
use crate::ir::{
    Action, LossSlices, Offloadable, OperandTypes, Parameter, Program, Section, SectionKind, ShapeSource,
    Value,
};
use device::Target;
use graph::Graphs;
use ops::{Members, Shape, Sizes};
use spec::{ActivationOffload, ProgramKey, RunConfig};

/// Compiles runs for a target, one after the other, and resizes the last program where possible.
#[derive(Clone, Debug)]
pub struct Compiler<'a> {
    target: &'a Target,
    verification: Verification,
    /// The last run's program.
    last: Option<Compiled>,
}

/// A run's program and its inputs.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub program: Program,
    /// The graphs of the run that it was compiled for: the same structure, possibly other sizes.
    pub graphs: Graphs,
    key: ProgramKey,
    pub recompute_plan: RecomputePlan,
}

impl<'a> Compiler<'a> {
    pub fn new(target: &'a Target, verification: Verification) -> Compiler<'a> {
        Compiler { target, verification, last: None }
    }

    pub fn target(&self) -> &'a Target {
        self.target
    }

    /// Compiles a run with its forward passes ([`rank_graphs`](super::rank_graphs)) and a recompute plan. Properties
    /// that do not affect memory (learning rates, seeds) may be those of an earlier run.
    ///
    /// # Errors
    /// A violation of the program's invariants: a mistake in a pass, never in the configuration.
    pub fn compile(
        &mut self,
        config: &RunConfig,
        graphs: Graphs,
        recompute_plan: &RecomputePlan,
    ) -> Result<&Compiled, Violation> {
        let target = self.target;
        let verification = self.verification;
        let (compiled, resized) = self.sized(config, graphs, recompute_plan)?;
        if resized {
            offsets::reassign(&mut compiled.program, target);
            if cfg!(debug_assertions) {
                verify(&compiled.program).map_err(|violation| violation.after("resize"))?;
            }
            lengths::add_programs(&mut compiled.program, config, target, verification)?;
        }
        Ok(compiled)
    }

    /// Like [`compile`](Compiler::compile), but without planning arena offsets, which may be stale: live bytes are
    /// right, positions are not.
    ///
    /// # Errors
    /// As from `compile`.
    pub fn compile_unplaced(
        &mut self,
        config: &RunConfig,
        graphs: Graphs,
        recompute_plan: &RecomputePlan,
    ) -> Result<&Compiled, Violation> {
        Ok(self.sized(config, graphs, recompute_plan)?.0)
    }

    /// A program of the run's sizes, and whether it was resized, so that its arena offsets are stale.
    fn sized(
        &mut self,
        config: &RunConfig,
        graphs: Graphs,
        recompute_plan: &RecomputePlan,
    ) -> Result<(&mut Compiled, bool), Violation> {
        let key = config.program_key();
        let last = self.last.take();
        let last = last.filter(|last| last.key == key && last.recompute_plan == *recompute_plan);
        let last = last.filter(|last| last.graphs.same_structure(&graphs));
        if let Some(mut last) = last
            && resize(&mut last.program, &graphs, config, self.target)
        {
            return Ok((self.last.insert(last), true));
        }
        let program = compile(&graphs, config, self.target, recompute_plan, self.verification)?;
        let recompute_plan = recompute_plan.clone();
        Ok((self.last.insert(Compiled { program, graphs, key, recompute_plan }), false))
    }
}

/// Resizes a program to a run whose graphs have the same structure. Arena offsets are not updated. Returns false if
/// the run must be compiled anew, because the sizes change the structure: an operation needs a workspace at one of
/// the sizes only, or the number of slices, the sections, the buckets or the offloaded values differ.
#[must_use]
fn resize(program: &mut Program, graphs: &Graphs, config: &RunConfig, target: &Target) -> bool {
    let shape = |pass, value: usize| graphs.get(pass).values[value].ty.shape;
    let slices = |sliced: &LossSlices| slices::count(config, shape(sliced.pass, sliced.value).rows());
    if program.loss_slices.iter().any(|sliced| slices(sliced) != sliced.count) {
        return false;
    }
    // Shares have tensors of other sizes at each size of the model.
    if config.shards_states() {
        return false;
    }
    let own = config.of_rank(target.rank);
    let further = Section::new(SectionKind::Micro, &own).repeat_count > 0;
    if further != program.section(SectionKind::Micro).is_some() {
        return false;
    }
    let layouts: Vec<Layout> = layouts(graphs, config).collect();
    if !same_buckets(program, &layouts) {
        return false;
    }
    (program.batch_size, program.samples) = (config.train.batch_size, own.train.batch_size);
    program.evaluation_batch_size = config.evaluation_batch().unwrap_or(program.batch_size);
    program.evaluation_samples = own.evaluation_batch().unwrap_or(program.samples);
    program.sections.iter_mut().for_each(|section| section.resize(&own));
    let updates = config.train.optimizer.groups();
    let mut buckets = Vec::with_capacity(program.buckets.len());
    let mut scales = Vec::with_capacity(program.buckets.len());
    for (bucket, layout) in program.buckets.iter_mut().zip(layouts) {
        let mut shapes = vec![layout.ty.shape];
        let states = updates[bucket.update].rule.kept(bucket.format);
        for (kept, state) in bucket.states.iter_mut().zip(states) {
            let (members, ty) = state.layout(&layout.members, layout.ty);
            kept.members = members;
            shapes.push(ty.shape);
        }
        let mut of_scales = Vec::with_capacity(bucket.scales.len());
        for (kept, scales) in bucket.scales.iter_mut().zip(bucket.storage.scales()) {
            let (members, ty) = scales.layout(&layout.members);
            kept.members = members;
            of_scales.push(ty.shape);
        }
        bucket.members = layout.members;
        buckets.push(shapes);
        scales.push(of_scales);
    }
    resize_values(program, |program, source| match source {
        ShapeSource::Fixed | ShapeSource::Workspace => None,
        ShapeSource::Graph(pass, index) => Some(shape(pass, index)),
        ShapeSource::Rows(pass, index, slice) => Some(shape(pass, index).of_rows(slice)),
        ShapeSource::Batch(buffer, index) => {
            Some(shape(buffer.pass(), index).with_first(program.buffer_samples(buffer)))
        }
        ShapeSource::BatchOffsets(buffer) => Some(Shape::new(&[program.buffer_samples(buffer), 2])),
        ShapeSource::SampleOffsets(pass, value) => Some(Shape::new(&[shape(pass, value).dims()[0], 2])),
        ShapeSource::Bucket(bucket) => Some(buckets[bucket][0]),
        ShapeSource::State(bucket, state) => Some(buckets[bucket][1 + state]),
        ShapeSource::Scales(bucket, index) => Some(scales[bucket][index]),
        ShapeSource::MemberScales(bucket, index, member) => {
            Some(program.buckets[bucket].scales[index].members[member].shape)
        }
    });
    if let ActivationOffload::From(least) = config.strategy.offload.activations {
        let is_offloaded =
            |offloadable: &Offloadable| copies::is_offloaded(program.ty(offloadable.value), least.0);
        if program.offloadable.iter().any(|offloadable| is_offloaded(offloadable) != offloadable.is_offloaded)
        {
            return false;
        }
    }
    resize_operations(program, &rank_target(config, target))
}

/// Gives values the shapes of their sources, in order; `None`: the shape stays.
pub(super) fn resize_values(program: &mut Program, shape: impl Fn(&Program, ShapeSource) -> Option<Shape>) {
    for index in 0..program.values.len() {
        let Some(shape) = shape(program, program.values[index].shape_source) else { continue };
        program.values[index].ty.shape = shape;
        let Value { view, previous, .. } = program.values[index];
        // A version has the offset of the version before it.
        program.values[index].offset = match (previous, view) {
            (Some(previous), _) => program.value(previous).offset,
            (None, Some(view)) => program.view_offset(view),
            (None, None) => 0,
        };
    }
}

/// Whether the layouts put parameters into the program's buckets: some strategies treat small parameters differently.
fn same_buckets(program: &Program, layouts: &[Layout]) -> bool {
    let sites = layouts.iter().enumerate().flat_map(|(bucket, layout)| {
        let dtype = layout.group.format.states;
        layout.members.iter().map(move |member| (bucket, member.site, dtype))
    });
    let of = |parameter: &Parameter| {
        (parameter.bucket, parameter.site, program.buckets[parameter.bucket].format.states)
    };
    sites.eq(program.parameters.iter().map(of))
}

/// Resizes operations, their workspaces and FLOPs, after the values.
#[must_use]
pub(super) fn resize_operations(program: &mut Program, target: &Target) -> bool {
    let Program { values, sections, buckets, batch_size, share: states_share, .. } = program;
    let mut types = OperandTypes::default();
    for section in sections {
        let share = section.share(*batch_size);
        section.model_flops = 0;
        for instruction in &mut section.code {
            let Action::Launch { op, inputs, outputs, workspace } = &mut instruction.action else { continue };
            let OperandTypes { inputs: ins, outputs: outs } = types.of(values, inputs, outputs);
            let members = inputs.iter().filter_map(|id| match values[id.index()].shape_source {
                ShapeSource::Bucket(bucket) => Some(buckets[bucket].members.clone()),
                _ => None,
            });
            let members: Vec<Members> = members.collect();
            // Parts of tensors are laid out when a program is compiled.
            if states_share.is_none() || op.as_update().is_none() {
                op.resize(&Sizes { inputs: ins, outputs: outs, buckets: &members });
            }
            if let Some(loss) = op.as_loss().filter(|_| section.kind.is_in_step()) {
                *op = loss.of_share(share);
            }
            let bytes = op.workspace(ins, outs, &target.workspace_limits(instruction.device));
            match workspace {
                Some(id) if bytes > 0 => values[id.index()].ty = workspaces::ty(bytes),
                None if bytes == 0 => {}
                _ => return false,
            }
            let flops = op.flops(ins, outs);
            section.model_flops += if instruction.is_model_work() { flops } else { 0 };
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use crate::rank_graphs;
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::{compile_run, recompute_plan_of};
    use graph::Graph;
    use spec::{Evaluation, Train};
    use testing::{any_config, any_target, full, models, random_cases};

    /// The first difference between two programs, by the name of the operation or the value.
    fn difference(found: &Program, expected: &Program) -> Option<String> {
        for (a, b) in found.sections.iter().zip(&expected.sections) {
            for (a, b) in a.code.iter().zip(&b.code) {
                if a != b {
                    return Some(format!("{:?} instead of {:?}", a.action, b.action));
                }
            }
        }
        for (index, (a, b)) in found.values.iter().zip(&expected.values).enumerate() {
            if a != b {
                let name = found.full_name(ops::ValueId(index as u32));
                return Some(format!("{name}: {a:?} instead of {b:?}"));
            }
        }
        (found != expected).then(|| "something other than code and values differs".to_owned())
    }

    proptest! {
        #![proptest_config(random_cases(if full() { 128 } else { 32 }))]

        /// Holds for any sizes that the program had before; all predictions then agree as well.
        #[test]
        fn resized_program_equals_compiled_program(
            config in any_config(), other in any_config(), target in any_target(), more in 0..=18usize,
        ) {
            // The same choices at other sizes, of a model of equal depth.
            let batch_size = (config.strategy.accumulate + more).max(config.ranks());
            let other = RunConfig {
                model: models::as_deep(&other.model, &config.model),
                train: Train { batch_size, ..config.train.clone() },
                evaluation: config.evaluation.clone().map(|evaluation| {
                    let batch_size = evaluation.batch_size.map(|samples| samples + more);
                    Evaluation { batch_size, ..evaluation }
                }),
                ..config.clone()
            };
            let structure = |config: &RunConfig| {
                let graphs = rank_graphs(config, &target);
                let Graphs { full, tail, evaluated } = &graphs;
                let slices = |graph: &Graph| {
                    let loss = graph.nodes.iter().find(|node| node.op.as_loss().is_some()).expect("a loss");
                    slices::count(config, graph.values[loss.inputs[0]].ty.shape.rows())
                };
                let further = Section::new(SectionKind::Micro, &config.of_rank(0)).repeat_count > 0;
                let program = compile_run(config, &target).unwrap();
                let offloaded: Vec<bool> = program.offloadable.iter().map(|value| value.is_offloaded).collect();
                let formats: Vec<_> = layouts(&graphs, config)
                    .flat_map(|Layout { group, members, .. }| vec![group.format.states; members.len()])
                    .collect();
                let recompute_plan = recompute_plan_of(config, &graphs);
                let evaluated = evaluated.as_ref().map(|evaluated| slices(&evaluated.full));
                let slices = [Some(slices(full)), tail.as_ref().map(slices), evaluated];
                // The deviation of a bias depends on the number of inputs.
                let kinds: Vec<_> = full.values.iter().map(|value| value.kind).collect();
                (slices, further, offloaded, formats, recompute_plan, kinds)
            };
            let mut compiler = Compiler::new(&target, Verification::AfterEveryPass);
            let compile = |compiler: &mut Compiler<'_>, config: &RunConfig| {
                let graphs = rank_graphs(config, &target);
                let recompute_plan = recompute_plan_of(config, &graphs);
                compiler.compile(config, graphs, &recompute_plan).unwrap().program.clone()
            };
            compile(&mut compiler, &other);
            let mut before = &other;
            for config in [&config, &other] {
                let recompute_plan = recompute_plan_of(config, &rank_graphs(config, &target));
                let resized = compiler.sized(config, rank_graphs(config, &target), &recompute_plan).unwrap().1;
                let is_same = !config.shards_states() && structure(config) == structure(before);
                prop_assert!(resized || !is_same, "the structure is the same");
                before = config;
                let resized = compile(&mut compiler, config);
                let compiled = compile_run(config, &target).unwrap();
                prop_assert_eq!(difference(&resized, &compiled), None);
            }
        }
    }
}
