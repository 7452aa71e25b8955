//! Buffers that the host and the program share: batches, data that is held as a whole, and the numbers of a step.

use super::build::results;
use crate::ir::{BatchBuffer, HostBuffers, Program, ShapeSource, Value};
use data::{Part, row};
use device::{Pool, Role};
use graph::{Graphs, ScopeId};
use ops::{TensorType, ValueId};
use spec::{DataResidence, RunConfig};

/// Adds the host buffers.
pub(super) fn host_buffers(program: &mut Program, graphs: &Graphs, config: &RunConfig) -> HostBuffers {
    let scope = program.add_scope("batch");
    let numbers = config.train.optimizer.groups().iter().map(|group| group.rule.numbers_len()).sum();
    let batch = batch_parts(program, graphs, config, BatchBuffer::Host, scope);
    let held = held(program, config);
    let mut input = |name, ty, pool| program.add_value(name, scope, ty, Role::Input, pool);
    let step_scalars = input("control", (ShapeSource::Fixed, TensorType::f32(&[numbers])), Pool::Pinned);
    let mut result = |name, len| input(name, (ShapeSource::Fixed, TensorType::f32(&[len])), Pool::Pinned);
    let has_accuracy = config.evaluation.is_some() && config.model.has_accuracy();
    let results = results(result("loss", 1), has_accuracy.then(|| result("evaluated", 2)));
    let evaluation = match config.evaluation_batch() {
        None => Vec::new(),
        Some(_) => {
            let scope = program.add_scope("evaluation-batch");
            batch_parts(program, graphs, config, BatchBuffer::Evaluation, scope)
        }
    };
    HostBuffers { batch, staged: Vec::new(), evaluation, held, step_scalars, results }
}

/// Adds the data that is held as a whole.
fn held(program: &mut Program, config: &RunConfig) -> Vec<ValueId> {
    let pool = match config.strategy.loader.source {
        DataResidence::Stream => return Vec::new(),
        DataResidence::Ram => Pool::Host,
        DataResidence::Device => Pool::Device,
    };
    let len = config.data_len.expect("the planner counts the data that is held in memory");
    let scope = program.add_scope("data");
    let add = |part: Part| {
        let ty = (ShapeSource::Fixed, part.of_samples(len));
        program.add_value(part.name, scope, ty, Role::Input, pool)
    };
    config.held_parts().into_iter().map(add).collect()
}

/// Adds the parts of the whole batches of a buffer in host memory.
fn batch_parts(
    program: &mut Program,
    graphs: &Graphs,
    config: &RunConfig,
    buffer: BatchBuffer,
    scope: ScopeId,
) -> Vec<ValueId> {
    let graph = graphs.get(buffer.pass());
    let samples = program.buffer_samples(buffer);
    let loaded = config.loaded();
    let role = |index: usize| graph.values[index].input_role().expect("inputs have roles");
    let is_gathered = |index: &usize| config.is_gathered(role(*index));
    let pool = if config.strategy.loader.pinned { Pool::Pinned } else { Pool::Host };
    let mut input = |name, ty| program.add_value(name, scope, ty, Role::Input, pool);
    let batch_type = |index: usize| {
        let TensorType { dtype, shape } = graph.values[index].ty;
        let part = loaded.iter().find(|part| part.name == graph.values[index].name);
        let dtype = part.map_or(dtype, |part| part.ty.dtype);
        (ShapeSource::Batch(buffer, index), TensorType { dtype, shape: shape.with_first(samples) })
    };
    let copied_parts = graph.inputs().filter(|index| !is_gathered(index));
    let mut batch: Vec<ValueId> =
        copied_parts.map(|index| input(graph.values[index].name, batch_type(index))).collect();
    if graph.inputs().any(|index| is_gathered(&index)) {
        let place = row::place();
        batch.push(input(place.name, (ShapeSource::BatchOffsets(buffer), place.of_samples(samples))));
    }
    batch
}

/// Adds the device copies of the current and the next batch, if batches are copied ahead.
pub(super) fn staged(program: &mut Program, config: &RunConfig) -> Vec<ValueId> {
    if !config.strategy.loader.brings_ahead() {
        return Vec::new();
    }
    let scope = program.add_scope("staged");
    let samples = program.buffer_samples(BatchBuffer::Staged);
    let of = |program: &mut Program, id: ValueId| {
        let Value { name, shape_source, ty, .. } = *program.value(id);
        let shape_source = match shape_source {
            ShapeSource::Batch(_, index) => ShapeSource::Batch(BatchBuffer::Staged, index),
            _ => ShapeSource::BatchOffsets(BatchBuffer::Staged),
        };
        let ty = TensorType { shape: ty.shape.with_first(samples), ..ty };
        program.add_value(name, scope, (shape_source, ty), Role::Input, Pool::Device)
    };
    let batch = program.host_buffers.batch.clone();
    batch.into_iter().map(|id| of(program, id)).collect()
}
