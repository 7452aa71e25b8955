//! One program for many runs.
//!
//! A planner that asks for thousands of runs of the same structure compiles it once, with all checks between all
//! passes, and then gives the same program the sizes of one run after the other. That the result is what compiling
//! each of them gives is a test over random runs; builds with debug assertions verify it every time.

use super::build::{self, Layout};
use super::program::{Action, Program, SectionKind};
use super::structure::structure;
use super::type_classes::TypeClasses;
use super::verify::{Invariant, Violation, verify};
use super::{compile, place};
use crate::device::{Queue, Target};
use crate::graph;
use crate::ops::{Op, Segments, TensorType, ValueId};
use crate::spec::{Model, RunConfig};

/// A compiled program whose sizes can be changed. What memory does not depend on (rates, seeds) is the structure's,
/// not the run's.
#[derive(Clone, Debug)]
pub struct Template<'a> {
    target: &'a Target,
    /// With the sizes that the program has now.
    config: RunConfig,
    program: Program,
    classes: TypeClasses,
    /// Where each micro-batch of tokens and targets lies on the device.
    tokens: Vec<ValueId>,
}

impl<'a> Template<'a> {
    /// Compiles the structure of a run for a target.
    ///
    /// # Errors
    /// A violation of the program's invariants: a mistake in a pass, never in the configuration.
    pub fn new(config: &RunConfig, target: &'a Target) -> Result<Template<'a>, Violation> {
        let config = structure(config);
        let program = compile(&config, target)?;
        let classes = TypeClasses::new(&program, &given(&program));
        let tokens = uploads(&program);
        Ok(Template { target, config, program, classes, tokens })
    }

    /// The program, with the sizes it has now.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Gives the program the sizes of a run of the same structure, and all of its storages their places.
    ///
    /// # Errors
    /// A violation of the program's invariants, as from `compile`.
    pub fn resize(&mut self, config: &RunConfig) -> Result<(), Violation> {
        debug_assert_eq!(structure(&self.config), structure(config));
        self.config = config.clone();
        self.size_parameters();
        self.size_batch(config.train.batch_size)?;
        self.place()
    }

    /// Gives the program another batch size and leaves all else as it is, places too: what is live is right, but
    /// not where it is.
    ///
    /// # Errors
    /// A violation of the program's invariants, as from `compile`.
    pub fn size_batch(&mut self, batch_size: usize) -> Result<(), Violation> {
        self.config.train.batch_size = batch_size;
        let Model::Transformer(model) = &self.config.model;
        let batch = TensorType::i32(&[batch_size, model.context]);
        let micro_batch = TensorType::i32(&[self.config.micro_batch(), model.context]);
        let exchange = self.program.exchange;
        for id in [exchange.tokens, exchange.targets] {
            self.program.values[id.index()].ty = batch;
        }
        for id in &self.tokens {
            self.program.values[id.index()].ty = micro_batch;
        }
        let limits = self.target.workspace_limits();
        self.classes.apply(&mut self.program, &limits).map_err(|error| Violation {
            invariant: Invariant::Types,
            detail: error.to_string(),
            pass: "resize",
        })
    }

    /// Gives all storages places that suit their sizes.
    ///
    /// # Errors
    /// A violation of the program's invariants, as from `compile`.
    pub fn place(&mut self) -> Result<(), Violation> {
        place::place_anew(&mut self.program, self.config.strategy.allocator, self.target);
        if cfg!(debug_assertions) {
            verify(&self.program).map_err(|violation| violation.after("resize"))?;
        }
        Ok(())
    }

    /// All that does not depend on the batch.
    fn size_parameters(&mut self) {
        let program = &mut self.program;
        program.micro_batches = self.config.strategy.accumulate;
        let graph = graph::build(&self.config.model, self.config.micro_batch());
        let mut parameters = program.parameters.iter();
        for (bucket, layout) in program.buckets.iter_mut().zip(build::layouts(&graph, &self.config)) {
            let Layout { members, segments, ty, .. } = layout;
            let moments = bucket.moments.into_iter().flatten();
            for id in moments.chain([bucket.parameters]).chain(bucket.gradients) {
                program.values[id.index()].ty = ty;
            }
            for ((&(index, _), segment), parameter) in
                members.iter().zip(segments.iter()).zip(&mut parameters)
            {
                let ty = graph.values[index].ty;
                let offset = segment.offset as u64 * ty.dtype.bytes();
                for id in [Some(parameter.value), parameter.gradient].into_iter().flatten() {
                    let value = &mut program.values[id.index()];
                    (value.ty, value.offset) = (ty, offset);
                }
            }
            bucket.segments = segments;
        }
        // A version is like the one before it and lies where that does.
        for index in 0..program.values.len() {
            if let Some(previous) = program.values[index].previous {
                let (ty, offset) = (program.ty(previous), program.value(previous).offset);
                let version = &mut program.values[index];
                (version.ty, version.offset) = (ty, offset);
            }
        }
        self.size_operations();
    }

    /// What operations themselves say of sizes.
    fn size_operations(&mut self) {
        let program = &mut self.program;
        let Model::Transformer(model) = &self.config.model;
        let weight = 1.0 / program.micro_batches as f32;
        let (values, buckets) = (&program.values, &program.buckets);
        let segments_of = |id: ValueId| -> Segments {
            let bucket = buckets.iter().find(|bucket| bucket.parameters == id);
            bucket.expect("the optimizer works on buckets").segments.clone()
        };
        for section in &mut program.sections {
            for instruction in &mut section.code {
                let Action::Launch { op, inputs, outputs, .. } = &mut instruction.action else { continue };
                match op {
                    Op::AdamW(op) => op.segments = segments_of(inputs[0]),
                    Op::Attention(op) => op.heads = model.heads,
                    Op::AttentionBackward(op) => op.heads = model.heads,
                    Op::CrossEntropy(op) if section.kind != SectionKind::Evaluation => op.weight = weight,
                    Op::EmbeddingBackward(op) => op.vocabulary = model.vocabulary,
                    Op::Fill(op) => op.output = values[outputs[0].index()].ty,
                    Op::GlobalNorm(op) => {
                        op.buckets = buckets.iter().map(|bucket| bucket.segments.clone()).collect();
                    }
                    Op::Normal(op) => op.output = values[outputs[0].index()].ty,
                    Op::Add(_)
                    | Op::Cast(_)
                    | Op::CrossEntropy(_)
                    | Op::Embedding(_)
                    | Op::GeluBackward(_)
                    | Op::LayerNorm(_)
                    | Op::LayerNormBackward(_)
                    | Op::Linear(_)
                    | Op::LinearInputGradient(_)
                    | Op::LinearWeightGradient(_)
                    | Op::LossScale(_) => {}
                }
            }
        }
    }
}

/// Values whose types are given, not derived by an operation: parameters and what is like them, the batch.
fn given(program: &Program) -> Vec<ValueId> {
    let mut given = Vec::new();
    for parameter in &program.parameters {
        given.extend([Some(parameter.value), parameter.gradient].into_iter().flatten());
    }
    for bucket in &program.buckets {
        given.push(bucket.parameters);
        given.extend(bucket.gradients);
        given.extend(bucket.moments.into_iter().flatten());
    }
    given
}

/// What the copy queue brings of the batch to the device.
fn uploads(program: &Program) -> Vec<ValueId> {
    let batch = [program.exchange.tokens, program.exchange.targets];
    let uploaded = |action: &Action| match *action {
        Action::Copy { queue: Queue::Copy, from, to } if batch.contains(&from) => Some(to),
        _ => None,
    };
    let code = program.sections.iter().flat_map(|section| &section.code);
    code.filter_map(|instruction| uploaded(&instruction.action)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::compile::memory_part;
    use crate::memory::predict;
    use crate::spec::Strategy;
    use crate::testing::{any_config, any_target};

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever sizes the template had before.
        #[test]
        fn a_resized_program_is_the_compiled_one(
            config in any_config(), other in any_config(), target in any_target(), micro_batch in 1..=9usize,
        ) {
            // The same structure at other sizes: more micro-batches of one sample, other widths.
            let accumulate = if config.strategy.accumulate > 1 { 1 + micro_batch } else { 1 };
            let strategy = Strategy { accumulate, ..config.strategy.clone() };
            let mut other = RunConfig { evaluation: config.evaluation.clone(), strategy, ..other };
            other.train.batch_size = accumulate;
            other.train.clip_norm = config.train.clip_norm;
            other.train.optimizer = config.train.optimizer.clone();
            let Model::Transformer(model) = &config.model;
            let Model::Transformer(other_model) = &mut other.model;
            other_model.layers = model.layers;

            let mut template = Template::new(&other, &target).unwrap();
            verify(template.program()).unwrap();
            for config in [&other, &config] {
                template.resize(&memory_part(config)).unwrap();
                verify(template.program()).unwrap();
                let compiled = compile(config, &target).unwrap();
                prop_assert_eq!(predict(template.program(), &target), predict(&compiled, &target));
                prop_assert!(*template.program() == compile(&memory_part(config), &target).unwrap());
            }
            let mut larger = memory_part(&config);
            larger.train.batch_size = config.strategy.accumulate * micro_batch;
            template.size_batch(larger.train.batch_size).unwrap();
            template.place().unwrap();
            prop_assert!(*template.program() == compile(&larger, &target).unwrap());
        }
    }
}
