//! The ledger of a program walked without storage.

use super::manager::{Failure, Manager, NoStorage, OutOfMemory, rounded};
use crate::compile::{Action, Program, SectionKind};
use crate::device::{Ledger, Pool, Target, Usage};
use crate::units::Bytes;

/// What a run will need, or where it will run out.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    pub device: Usage,
    pub host: Usage,
    pub out_of_memory: Option<OutOfMemory>,
    /// Trainable numbers in the model.
    pub parameters: u64,
    /// FLOPs of an optimizer step, without and with what is computed again.
    pub model_flops: u64,
    pub hardware_flops: u64,
}

/// Predicts a run of a program on a target. Where the run will end out of memory, the usage is what it would be
/// with memory enough.
pub fn predict(program: &Program, target: &Target) -> Prediction {
    let parameters = program.parameters.iter().map(|parameter| program.ty(parameter.value).elements() as u64);
    let (ledger, out_of_memory) = walk(program, target);
    Prediction {
        device: *ledger.usage(Pool::Device),
        host: *ledger.usage(Pool::Host),
        out_of_memory,
        parameters: parameters.sum(),
        model_flops: program.model_flops * program.micro_batches as u64,
        hardware_flops: hardware_flops(program),
    }
}

fn hardware_flops(program: &Program) -> u64 {
    let flops = |kind| program.section(kind).map_or(0, |section| program.flops_of(&section.code));
    let further = program.micro_batches as u64 - 1;
    flops(SectionKind::First) + further * flops(SectionKind::Micro) + flops(SectionKind::Update)
}

fn walk(program: &Program, target: &Target) -> (Ledger, Option<OutOfMemory>) {
    let out_of_memory = match walk_within(program, target) {
        Ok(ledger) => return (ledger, None),
        Err(Failure::OutOfMemory(found)) => *found,
        Err(Failure::Device(error)) => unreachable!("nothing is asked of a device: {error}"),
    };
    let boundless = Target { memory: Bytes(u64::MAX), ..target.clone() };
    match walk_within(program, &boundless) {
        Ok(ledger) => (ledger, Some(out_of_memory)),
        Err(_) => unreachable!("there is memory enough"),
    }
}

/// Start-up, then two optimizer steps and evaluations: state that first appears in the second is counted too.
/// Further micro-batches repeat the first of them exactly.
fn walk_within(program: &Program, target: &Target) -> Result<Ledger, Failure> {
    let mut manager = Manager::new(program, target, NoStorage::default())?;
    for (index, section) in program.sections.iter().enumerate() {
        if section.kind == SectionKind::Start {
            walk_section(&mut manager, program, index)?;
        }
    }
    for _ in 0..2 {
        for index in 0..program.sections.len() {
            if program.sections[index].kind != SectionKind::Start {
                walk_section(&mut manager, program, index)?;
            }
        }
    }
    Ok(manager.ledger().clone())
}

fn walk_section(manager: &mut Manager<NoStorage>, program: &Program, section: usize) -> Result<(), Failure> {
    (0..program.sections[section].code.len()).try_for_each(|index| manager.advance(section, index))
}

/// The most bytes that are ever live in the device pool: whatever the allocator, it asks the system for as much at
/// least.
pub fn peak_live(program: &Program, target: &Target) -> u64 {
    let (mut live, mut peak) = (0, 0);
    for instruction in program.sections.iter().flat_map(|section| &section.code) {
        match instruction.action {
            Action::Allocate(storage) if program.value(storage).pool == Pool::Device => {
                live += rounded(program, storage, target);
                peak = peak.max(live);
            }
            Action::Free(storage) if program.value(storage).pool == Pool::Device => {
                live -= rounded(program, storage, target);
            }
            _ => {}
        }
    }
    peak
}

/// Live bytes of the device pool after each instruction, by section, with memory enough.
pub fn live_bytes(program: &Program, target: &Target) -> Vec<Vec<u64>> {
    let boundless = Target { memory: Bytes(u64::MAX), ..target.clone() };
    let Ok(mut manager) = Manager::new(program, &boundless, NoStorage::default()) else {
        unreachable!("there is memory enough")
    };
    let mut after = |section: usize, index: usize| match manager.advance(section, index) {
        Ok(()) => manager.ledger().usage(Pool::Device).live.total(),
        Err(_) => unreachable!("there is memory enough"),
    };
    let sections = program.sections.iter().enumerate();
    sections
        .map(|(section, code)| (0..code.code.len()).map(|index| after(section, index)).collect())
        .collect()
}
