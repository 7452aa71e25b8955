//! Converts frozen parameters to their storage format. Each is initialised in fp32 in memory that is freed before the
//! next parameter, so that the whole model is never in memory in another format than its storage format.

use std::collections::HashMap;

use crate::ir::{
    Action, BucketState, Instruction, Program, SectionKind, ShapeSource, SubRange, Value, Variant, View,
};
use device::Role;
use ops::{Cast, DType, Dequantize, Op, Quantize, Sizes, Storage, TensorType, ValueId};

/// By frozen parameter in a storage format: the format and the scales, from which it can be decoded.
#[derive(Debug, Default)]
pub(crate) struct StorageDecoders(HashMap<ValueId, (Storage, Vec<ValueId>)>);

/// Gives frozen parameters their storage format, and adds their scales and encoders.
pub(crate) fn assign_formats(program: &mut Program) -> StorageDecoders {
    let mut scales = Vec::new();
    for bucket in 0..program.buckets.len() {
        let (storage, parameters) = (program.buckets[bucket].storage, program.buckets[bucket].parameters);
        if storage == Storage::Plain {
            continue;
        }
        program.set_dtype(parameters, storage.dtype());
        for (index, level) in storage.scales().iter().enumerate() {
            let (members, ty) = level.layout(&program.buckets[bucket].members);
            let (variant, shape_source) = (Variant::Scales(index), ShapeSource::Scales(bucket, index));
            let parameters = program.value(parameters).clone();
            let value = program.add_like(Value { variant, shape_source, ty, ..parameters });
            program.buckets[bucket].scales.push(BucketState { value, members });
            scales.push(value);
        }
    }
    for section in &mut program.sections {
        section.live_out.extend(&scales);
        if section.kind != SectionKind::Start {
            section.live_in.extend(&scales);
        }
    }
    let decoders = add_scale_views(program);
    encode_initial_values(program, &decoders);
    decoders
}

/// The views of each parameter's scales.
fn add_scale_views(program: &mut Program) -> StorageDecoders {
    let mut decoders = StorageDecoders::default();
    for index in 0..program.parameters.len() {
        let (id, bucket) = (program.parameters[index].value, program.parameters[index].bucket);
        let storage = program.buckets[bucket].storage;
        if storage == Storage::Plain {
            continue;
        }
        program.follow_parent(id);
        let Value { name, scope, view, .. } = *program.value(id);
        let Some(View { range: SubRange::Member(member), .. }) = view else {
            unreachable!("parameters are members of buckets")
        };
        let scales = program.buckets[bucket].scales.clone().into_iter().enumerate();
        let scales = scales.map(|(index, BucketState { value: of, members })| {
            let shape = (ShapeSource::MemberScales(bucket, index, member), members[member].shape);
            program.add_view(name, scope, shape, View { of, range: SubRange::Member(member) })
        });
        let scales: Vec<ValueId> = scales.collect();
        program.parameters[index].scales = scales.clone();
        decoders.0.insert(id, (storage, scales));
    }
    decoders
}

/// Redirects the initialisation of each such parameter to an fp32 value, and encodes that afterwards.
fn encode_initial_values(program: &mut Program, decoders: &StorageDecoders) {
    let Some(start) = program.sections.iter().position(|section| section.kind == SectionKind::Start) else {
        return;
    };
    let code = std::mem::take(&mut program.sections[start].code);
    let mut result = Vec::with_capacity(code.len() * 2);
    for mut instruction in code {
        let (scope, phase) = (instruction.scope, instruction.phase);
        let mut encode = None;
        if let Action::Launch { op, outputs, .. } = &mut instruction.action
            && let &mut [parameter] = &mut outputs[..]
            && let Some((storage, scales)) = decoders.0.get(&parameter)
        {
            let value = program.value(parameter).clone();
            let ty = TensorType { dtype: DType::F32, ..value.ty };
            op.resize(&Sizes { inputs: &[], outputs: &[ty], buckets: &[] });
            if value.ty == ty {
                result.push(instruction);
                continue;
            }
            let initial = program.add_like(Value { variant: Variant::Cast, role: Role::Cast, ty, ..value });
            program.originals.insert(initial, parameter);
            outputs[0] = initial;
            let op = match *storage {
                Storage::Codes(format) => Op::Quantize(Quantize { format }),
                Storage::Plain | Storage::Numbers(_) => Op::Cast(Cast { to: storage.dtype() }),
            };
            let outputs = [&[parameter], &scales[..]].concat();
            let action = Action::Launch { op, inputs: vec![initial], outputs, workspace: None };
            encode = Some(Instruction::new(action, scope, phase));
        }
        result.push(instruction);
        result.extend(encode);
    }
    program.sections[start].code = result;
}

impl StorageDecoders {
    pub(crate) fn contains(&self, id: ValueId) -> bool {
        self.0.contains_key(&id)
    }

    /// The action that decodes a parameter to `to` into `output`, if it has a storage format.
    pub(crate) fn decode(&self, parameter: ValueId, to: DType, output: ValueId) -> Option<Action> {
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
    /// Whether an action decodes a parameter from its storage format. Decoded parameters do not outlive a layer's
    /// pass, so they are decoded again for each use.
    pub(crate) fn decodes_parameter(&self, action: &Action) -> bool {
        let is_encoded = |id: &ValueId| match self.value(self.parent_or_self(*id)).shape_source {
            ShapeSource::Bucket(bucket) => self.buckets[bucket].storage != Storage::Plain,
            _ => false,
        };
        let makes_cast = |id: &ValueId| self.value(*id).role == Role::Cast;
        action.reads().first().is_some_and(is_encoded) && action.writes().iter().all(makes_cast)
    }
}
