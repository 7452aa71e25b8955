//! The inputs of a forward pass: copied from the batch, or gathered from data that the device holds, and cast before their
//! first use.

use std::collections::HashMap;

use crate::ir::{Action, HostBuffers, Instruction, Program, ShapeSource, Value, Variant};
use data::{Part, PartRole, Sample, row};
use device::{Phase, Pool, Queue, Role};
use graph::{Graph, GraphValue, Pass};
use ops::{Cast, CastIds, CastPixels, DType, GatherSamples, GatherTokens, Op, TensorType, ValueId};
use spec::RunConfig;

/// The inputs of one section.
pub(super) struct SectionInputs<'a> {
    config: &'a RunConfig,
    sample: Sample,
    pass: Pass,
    phase: Phase,
    /// The parts that are copied from, and the queue that copies.
    batch: Vec<ValueId>,
    queue: Queue,
    /// Inputs that the device gathers: index in the graph, and value.
    gathered: Vec<(usize, ValueId)>,
    /// The weights of samples, if some may be missing.
    weights: Option<ValueId>,
    /// Inputs that are transferred in another dtype than their operation takes, with their roles, by the cast value.
    narrow: HashMap<ValueId, (PartRole, ValueId)>,
}

impl<'a> SectionInputs<'a> {
    pub(super) fn new(
        program: &Program,
        config: &'a RunConfig,
        pass: Pass,
        phase: Phase,
    ) -> SectionInputs<'a> {
        let HostBuffers { batch, staged, evaluation, .. } = &program.host_buffers;
        let (batch, queue) = match staged.is_empty() {
            _ if phase == Phase::Evaluation && !evaluation.is_empty() => (evaluation, Queue::Copy),
            true => (batch, Queue::Copy),
            false => (staged, Queue::Compute),
        };
        SectionInputs {
            config,
            sample: config.sample(),
            pass,
            phase,
            batch: batch.clone(),
            queue,
            gathered: Vec::new(),
            weights: None,
            narrow: HashMap::new(),
        }
    }

    /// Adds the input of this index in the graph.
    pub(super) fn add(
        &mut self,
        program: &mut Program,
        (index, value): (usize, &GraphValue),
        id: ValueId,
        code: &mut Vec<Instruction>,
    ) {
        let role = value.input_role().expect("inputs have roles");
        if role == PartRole::Weight {
            self.weights = Some(id);
        }
        if self.config.is_gathered(role) {
            self.gathered.push((index, id));
            return;
        }
        let from = part(program, &self.batch, value.name);
        let to = self.add_narrow(program, id, role, from);
        let action = Action::Copy { queue: self.queue, from, to };
        code.push(Instruction::new(action, program.value(from).scope, self.phase));
    }

    /// The value that has the dtype of a buffer and is cast to `id`; `id` if it has that dtype.
    fn add_narrow(&mut self, program: &mut Program, id: ValueId, role: PartRole, buffer: ValueId) -> ValueId {
        let value = program.value(id).clone();
        let ty = TensorType { dtype: program.ty(buffer).dtype, ..value.ty };
        if ty == value.ty {
            return id;
        }
        let narrow = program.add_like(Value { variant: Variant::Cast, ty, ..value });
        self.narrow.insert(id, (role, narrow));
        narrow
    }

    /// Gathers samples from the data that the device holds.
    pub(super) fn gather(&mut self, program: &mut Program, graph: &Graph, code: &mut Vec<Instruction>) {
        let gathered = std::mem::take(&mut self.gathered);
        let Some(&(first, _)) = gathered.first() else { return };
        let Part { name, .. } = row::place();
        let from = part(program, &self.batch, name);
        let scope = program.value(from).scope;
        let shape_source = ShapeSource::SampleOffsets(self.pass, first);
        let ty = row::place().of_samples(graph.values[first].ty.shape.dims()[0]);
        let place = program.add_value(name, scope, (shape_source, ty), Role::Input, Pool::Device);
        let action = Action::Copy { queue: self.queue, from, to: place };
        code.push(Instruction::new(action, scope, self.phase));
        let held = program.host_buffers.held.clone();
        for (index, id) in gathered {
            let value = &graph.values[index];
            let (role, ty) = (value.input_role().expect("inputs have roles"), value.ty);
            let (op, from, to) = match row::places_later(role) {
                Some(later) if self.config.data.data_set().is_row() => {
                    let (masks, length) = (self.sample.masks(role), ty.shape.last());
                    (Op::GatherTokens(GatherTokens { later, masks, length }), held[0], id)
                }
                _ => {
                    let from = part(program, &held, value.name);
                    let masks = ty.dtype == DType::I32 && role == PartRole::Target;
                    let to = self.add_narrow(program, id, role, from);
                    (Op::GatherSamples(GatherSamples { masks }), from, to)
                }
            };
            let action = Action::Launch { op, inputs: vec![from, place], outputs: vec![to], workspace: None };
            code.push(Instruction::new(action, scope, self.phase));
        }
    }

    /// The cast of an input before the first operation that reads it, if it needs one.
    pub(super) fn cast(&mut self, program: &Program, wide: ValueId) -> Option<Action> {
        let (role, narrow) = self.narrow.remove(&wide)?;
        let mut inputs = vec![narrow];
        let op = match (program.ty(narrow).dtype, program.ty(wide).dtype) {
            (_, DType::I32) => Op::CastIds(CastIds { masked: self.sample.masks(role) }),
            (DType::U8, _) => {
                inputs.extend(self.weights);
                let scale = self.config.data.data_set().pixel_scale().expect("checked: inputs are pixels");
                Op::CastPixels(CastPixels { scale })
            }
            (_, to) => Op::Cast(Cast { to }),
        };
        Some(Action::Launch { op, inputs, outputs: vec![wide], workspace: None })
    }
}

/// The buffer of a part.
fn part(program: &Program, buffers: &[ValueId], name: &str) -> ValueId {
    let has_name = |id: &&ValueId| program.value(**id).name == name;
    *buffers.iter().find(has_name).expect("batch and held data have all parts of a sample")
}
