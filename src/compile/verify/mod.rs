//! Invariants of a program, which must hold after every pass.

mod dataflow;
mod gradients;
mod lifetimes;
mod queues;
mod shares;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;

use crate::ir::{Action, Instruction, OperandTypes, Program, Section, Stage};
use device::{Collective, Queue};
use ops::{DType, TensorType, ValueId};

/// An invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invariant {
    /// Operands have the types that their operation declares.
    Types,
    /// Every value is written before it is read.
    WriterDominates,
    /// No value is read after it was overwritten; no value or part of one is written twice.
    NotOverwritten,
    /// Every trainable parameter has exactly one complete gradient when it is updated.
    OneGradient,
    /// In each loss, each micro-batch weighs its share of the batch's samples, the shares sum to one, and all losses
    /// add to one sum.
    SharesSumToOne,
    /// Each random draw has its own site, which was assigned when the program was built.
    RandomSites,
    /// FLOPs without recomputation equal the model's.
    Flops,
    /// A view has its parent's dtype, role and pool, and lies within it; a version has the memory of the version
    /// before it.
    Containment,
    /// Operands of a launch are in its device's memory; copies go between pools or within them.
    Devices,
    /// Cross-queue dependencies are ordered by events.
    Events,
    /// Each storage is allocated once and freed exactly once, around all its uses.
    FreedOnce,
    /// Storages that are live together do not overlap; in an arena each has an offset.
    Overlap,
    /// The live-in storages of a section are the live-out storages of the sections before it.
    LiveSets,
}

/// A violated invariant: a mistake in a pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Violation {
    pub invariant: Invariant,
    pub detail: String,
    pub pass: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { invariant, detail, pass } = self;
        write!(
            f,
            "invariant {invariant:?} is violated after pass `{pass}`: {detail}; this is a bug in runner"
        )
    }
}

impl Violation {
    pub(super) fn after(self, pass: &'static str) -> Violation {
        Violation { pass, ..self }
    }
}

fn broken<T>(invariant: Invariant, detail: impl Into<String>) -> Result<T, Violation> {
    Err(Violation { invariant, detail: detail.into(), pass: "" })
}

/// Checks every invariant that applies at the program's stage.
///
/// # Errors
/// The first violated invariant, and where.
pub fn verify(program: &Program) -> Result<(), Violation> {
    containment(program)?;
    let versions = dataflow::VersionIndex::of(program);
    let has_lazy_init = program.lazily_initialised().next().is_some();
    for (index, section) in program.sections.iter().enumerate() {
        if !has_lazy_init {
            check_section(program, section, &versions)?;
            continue;
        }
        check_section(program, &section.later_iterations(), &versions)?;
        // Evaluations run after lazy initialisation is complete.
        if !section.kind.is_in_evaluation() {
            check_section(program, &program.first_iteration(index), &versions)?;
        }
    }
    random_sites(program)?;
    flops(program)?;
    shares::shares(program)?;
    if program.stage >= Stage::Differentiated {
        gradients::one_gradient(program)?;
    }
    if program.stage >= Stage::Sectioned {
        shares::all_samples(program)?;
        shares::one_loss_sum(program)?;
    }
    if program.stage >= Stage::Updated {
        gradients::one_update(program)?;
        lifetimes::carried(program)?;
    }
    Ok(())
}

/// The type of a copy of `samples` samples that may be shorter than those of a batch.
fn of_shorter_samples(batch: TensorType, copy: TensorType, samples: usize) -> TensorType {
    let shape = batch.shape.with_first(samples);
    let is_shorter = batch.shape.dims().len() == 2 && copy.shape.last() < batch.shape.last();
    TensorType { shape: if is_shorter { shape.with_last(copy.shape.last()) } else { shape }, ..batch }
}

fn check_section(
    program: &Program,
    section: &Section,
    versions: &dataflow::VersionIndex,
) -> Result<(), Violation> {
    types(program, section)?;
    devices(program, section)?;
    dataflow::check(program, section, versions)?;
    if program.stage >= Stage::Ordered {
        queues::check(program, section)?;
    }
    if program.stage >= Stage::Deallocated {
        lifetimes::freed_once(program, section)?;
    }
    if program.stage >= Stage::Placed {
        lifetimes::overlap(program, section)?;
    }
    Ok(())
}

/// `first blocks.0.mlp linear-gelu`, for messages.
fn at(program: &Program, section: &Section, instruction: &Instruction) -> String {
    let scope = &program.scope(instruction.scope).path;
    let what = match &instruction.action {
        Action::Launch { op, .. } => op.name(),
        Action::Copy { .. } => "copy",
        Action::Exchange { collective, .. } => collective.name(),
        Action::Record { .. } => "record",
        Action::Wait { .. } => "wait",
        Action::Allocate(_) => "allocate",
        Action::Free(_) => "free",
        Action::Leak(_) => "leak",
        Action::Collect { .. } => "collect",
        Action::EmptyCache => "empty cache",
    };
    format!("{} {scope} {what}", section.kind.name())
}

fn types(program: &Program, section: &Section) -> Result<(), Violation> {
    let mut types = OperandTypes::default();
    let dtypes_are_open = program.stage < Stage::Typed;
    for instruction in &section.code {
        let found = match &instruction.action {
            Action::Launch { op, inputs, outputs, .. } => {
                types.of(&program.values, inputs, outputs);
                let OperandTypes { inputs, outputs } = &mut types;
                if dtypes_are_open {
                    inputs.iter_mut().chain(outputs.iter_mut()).for_each(leave_open);
                }
                let mut declared = op.outputs(inputs);
                if let (true, Ok(declared)) = (dtypes_are_open, &mut declared) {
                    declared.iter_mut().for_each(leave_open);
                }
                match declared {
                    Err(error) => Some(error.to_string()),
                    Ok(types) if types != *outputs => Some(format!("returns {types:?}, not {outputs:?}")),
                    Ok(_) => None,
                }
            }
            Action::Copy { from, to, .. } => {
                // From a buffer of whole batches, the section's samples of one batch are copied.
                let (all, samples) = match program.value(*from).shape_source.batch_buffer() {
                    Some(batches) => (program.buffer_samples(batches), section.samples),
                    None => (1, 1),
                };
                let (from, to) = (program.ty(*from), program.ty(*to));
                let times = |bytes: u64, count: usize| u128::from(bytes) * count as u128;
                let fits = times(from.bytes(), samples) == times(to.bytes(), all)
                    || (program.lengths.is_some() && to == of_shorter_samples(from, to, samples));
                (!fits || from.dtype != to.dtype).then(|| format!("copies {from} to {to}"))
            }
            Action::Exchange { collective, from, to } => {
                let (from, to) = (program.ty(*from), program.ty(*to));
                let [own, all] = [from, to].map(|ty| ty.bytes() * program.ranks as u64);
                let are_numbers = matches!(from.dtype, DType::F32 | DType::BF16 | DType::F16);
                let fits = match collective {
                    Collective::AllReduce => are_numbers && from == to,
                    Collective::ReduceScatter => are_numbers && from.bytes() == all,
                    Collective::AllGather => own == to.bytes(),
                };
                (!fits || from.dtype != to.dtype)
                    .then(|| format!("exchanges {from} for {to} by {}", collective.name()))
            }
            _ => None,
        };
        if let Some(found) = found {
            return broken(Invariant::Types, format!("{}: {found}", at(program, section, instruction)));
        }
    }
    Ok(())
}

fn containment(program: &Program) -> Result<(), Violation> {
    for (id, value) in (0..).map(ValueId).zip(&program.values) {
        if let Some(previous) = value.previous
            && value.storage != program.storage(previous)
        {
            let detail = format!("{} is not in the memory of its previous version", program.full_name(id));
            return broken(Invariant::Containment, detail);
        }
        let Some(view) = value.view else { continue };
        let parent = program.value(view.of);
        let matches_parent = (value.ty.dtype, value.role, value.pool, value.storage)
            == (parent.ty.dtype, parent.role, parent.pool, parent.storage);
        let within = value.offset == program.view_offset(view)
            && value.offset >= parent.offset
            && value.offset + value.ty.bytes() <= parent.offset + parent.ty.bytes();
        if !matches_parent || !within {
            let detail =
                format!("{} is not a valid view of {}", program.full_name(id), program.full_name(view.of));
            return broken(Invariant::Containment, detail);
        }
    }
    Ok(())
}

fn devices(program: &Program, section: &Section) -> Result<(), Violation> {
    use device::Pool;
    for instruction in &section.code {
        let on_device = |id: ValueId| program.value(id).pool == Pool::Device;
        let on_own_device = |id: ValueId| program.value(id).pool.home() == instruction.device;
        let is_valid = match &instruction.action {
            launch @ Action::Launch { .. } if program.stage >= Stage::Transferred => {
                launch.touches().all(on_own_device)
            }
            // Transfers use the copy queue; results are copied by the compute queue after the launch that writes
            // them.
            Action::Copy { queue: Queue::Copy, from, to } => on_device(*from) != on_device(*to),
            Action::Copy { queue: Queue::Compute, from, .. } => on_device(*from),
            Action::Copy { queue: Queue::Host, .. } => false,
            _ => true,
        };
        if !is_valid {
            return broken(Invariant::Devices, at(program, section, instruction));
        }
    }
    Ok(())
}

fn random_sites(program: &Program) -> Result<(), Violation> {
    let sites = program.parameters.iter().enumerate().map(|(index, parameter)| (parameter.site, index));
    let sites: HashMap<u32, usize> = sites.collect();
    let mut seen = vec![false; program.parameters.len()];
    for section in &program.sections {
        for instruction in &section.code {
            let Action::Launch { op, outputs, .. } = &instruction.action else { continue };
            let Some(site) = op.random_site() else { continue };
            let of = sites.get(&site);
            let own = of.is_some_and(|&parameter| {
                program.original(outputs[0]) == program.parameters[parameter].value
            });
            if !own || of.is_some_and(|&parameter| std::mem::replace(&mut seen[parameter], true)) {
                let detail = format!("{} draws from site {site}", at(program, section, instruction));
                return broken(Invariant::RandomSites, detail);
            }
        }
    }
    program.sections.iter().try_for_each(|section| dropped_sites(program, section))
}

/// Each dropout site draws once per forward pass; recomputation and backward repeat the same draw.
fn dropped_sites(program: &Program, section: &Section) -> Result<(), Violation> {
    let mut seen = HashMap::new();
    for instruction in &section.code {
        let Action::Launch { op, .. } = &instruction.action else { continue };
        let Some(dropped) = op.drops() else { continue };
        let is_first = instruction.phase != device::Phase::Backward;
        let before = seen.entry(dropped.site).or_insert((instruction.scope, dropped, 0));
        before.2 += usize::from(is_first);
        let is_same = (before.0, before.1) == (instruction.scope, dropped);
        if !is_same || before.2 != 1 || section.kind.is_in_evaluation() {
            let detail = format!("{} drops at site {}", at(program, section, instruction), dropped.site);
            return broken(Invariant::RandomSites, detail);
        }
    }
    Ok(())
}

fn flops(program: &Program) -> Result<(), Violation> {
    for section in &program.sections {
        let flops = program.flops_of(section.code.iter().filter(|instruction| instruction.is_model_work()));
        if flops != section.model_flops {
            let (kind, model) = (section.kind.name(), section.model_flops);
            return broken(Invariant::Flops, format!("{kind} has {flops} FLOPs, the model {model}"));
        }
    }
    Ok(())
}

/// While dtypes are open, all float dtypes count as equal.
fn leave_open(ty: &mut TensorType) {
    if ty.dtype.is_float() {
        ty.dtype = DType::F32;
    }
}
