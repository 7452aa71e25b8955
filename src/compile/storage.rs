//! Parameters that are not trained take on what they are stored as. Each comes into being plainly, in memory that is given
//! back before the next one does, so that a model is never there as a whole in what it is not stored as.

use std::collections::HashMap;

use super::instruction::{Action, Instruction};
use super::program::{BucketState, Program, SectionKind};
use super::value::{Form, Like, Part, Value, View};
use device::Role;
use ops::{Cast, DType, Dequantize, Op, Quantize, Sizes, Storage, TensorType, ValueId};

/// What brings a stored parameter to the dtype of the work, by that parameter.
#[derive(Debug, Default)]
pub(super) struct StorageDecoders(HashMap<ValueId, (Storage, Vec<ValueId>)>);

/// Stores parameters.
pub(super) fn store(program: &mut Program) -> StorageDecoders {
    let mut scales = Vec::new();
    for bucket in 0..program.buckets.len() {
        let (storage, parameters) = (program.buckets[bucket].storage, program.buckets[bucket].parameters);
        if storage == Storage::Plain {
            continue;
        }
        program.set_dtype(parameters, storage.dtype());
        for (index, part) in storage.scales().iter().enumerate() {
            let (members, ty) = part.layout(&program.buckets[bucket].members);
            let (form, like) = (Form::Scales(index), Like::Scales(bucket, index));
            let parameters = program.value(parameters).clone();
            let value = program.add_like(Value { form, like, ty, ..parameters });
            program.buckets[bucket].scales.push(BucketState { value, members });
            scales.push(value);
        }
    }
    for section in &mut program.sections {
        section.exit.extend(&scales);
        if section.kind != SectionKind::Start {
            section.entry.extend(&scales);
        }
    }
    let stored = views(program);
    store_first_values(program, &stored);
    stored
}

/// The parts of what is stored that are each parameter's.
fn views(program: &mut Program) -> StorageDecoders {
    let mut stored = StorageDecoders::default();
    for index in 0..program.parameters.len() {
        let (id, bucket) = (program.parameters[index].value, program.parameters[index].bucket);
        let storage = program.buckets[bucket].storage;
        if storage == Storage::Plain {
            continue;
        }
        program.follow_parent(id);
        let Value { name, scope, view, .. } = *program.value(id);
        let Some(View { part: Part::Member(member), .. }) = view else {
            unreachable!("parameters are members of buckets")
        };
        let scales = program.buckets[bucket].scales.clone().into_iter().enumerate();
        let scales = scales.map(|(index, BucketState { value: of, members })| {
            let shape = (Like::ScalesOf(bucket, index, member), members[member].shape);
            program.add_view(name, scope, shape, View { of, part: Part::Member(member) })
        });
        let scales: Vec<ValueId> = scales.collect();
        program.parameters[index].scales = scales.clone();
        stored.0.insert(id, (storage, scales));
    }
    stored
}

/// Lets what makes a parameter's first value make it plainly, to be stored then.
fn store_first_values(program: &mut Program, stored: &StorageDecoders) {
    let Some(start) = program.sections.iter().position(|section| section.kind == SectionKind::Start) else {
        return;
    };
    let code = std::mem::take(&mut program.sections[start].code);
    let mut result = Vec::with_capacity(code.len() * 2);
    for mut instruction in code {
        let (scope, phase) = (instruction.scope, instruction.phase);
        let mut storing = None;
        if let Action::Launch { op, outputs, .. } = &mut instruction.action
            && let &mut [parameter] = &mut outputs[..]
            && let Some((storage, scales)) = stored.0.get(&parameter)
        {
            let value = program.value(parameter).clone();
            let ty = TensorType { dtype: DType::F32, ..value.ty };
            op.resize(&Sizes { inputs: &[], outputs: &[ty], buckets: &[] });
            if value.ty == ty {
                result.push(instruction);
                continue;
            }
            let plain = program.add_like(Value { form: Form::Cast, role: Role::Cast, ty, ..value });
            program.stand_ins.insert(plain, parameter);
            outputs[0] = plain;
            let op = match *storage {
                Storage::Codes(format) => Op::Quantize(Quantize { format }),
                Storage::Plain | Storage::Numbers(_) => Op::Cast(Cast { to: storage.dtype() }),
            };
            let outputs = [&[parameter], &scales[..]].concat();
            let action = Action::Launch { op, inputs: vec![plain], outputs, workspace: None };
            storing = Some(Instruction::new(action, scope, phase));
        }
        result.push(instruction);
        result.extend(storing);
    }
    program.sections[start].code = result;
}

impl StorageDecoders {
    pub(super) fn contains(&self, id: ValueId) -> bool {
        self.0.contains_key(&id)
    }

    /// What makes a stored parameter numbers of this type, into the value, if it is stored as something else.
    pub(super) fn bring(&self, parameter: ValueId, to: DType, output: ValueId) -> Option<Action> {
        let (storage, scales) = self.0.get(&parameter)?;
        let op = match *storage {
            Storage::Codes(format) => Op::Dequantize(Dequantize { format, to }),
            Storage::Plain | Storage::Numbers(_) => Op::Cast(Cast { to }),
        };
        let inputs = [&[parameter], &scales[..]].concat();
        Some(Action::Launch { op, inputs, outputs: vec![output], workspace: None })
    }
}

impl Program {
    /// Whether an action brings a stored parameter to what the work is done in: no more than a layer has that at a time, and
    /// so it is done again where that is used again.
    pub(super) fn brings_stored(&self, action: &Action) -> bool {
        let is_stored = |id: &ValueId| match self.value(self.whole(*id)).like {
            Like::Bucket(bucket) => self.buckets[bucket].storage != Storage::Plain,
            _ => false,
        };
        let makes_cast = |id: &ValueId| self.value(*id).role == Role::Cast;
        action.reads().first().is_some_and(is_stored) && action.writes().iter().all(makes_cast)
    }
}
