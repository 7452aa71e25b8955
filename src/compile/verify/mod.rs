//! What must hold of a program between any two passes.

mod dataflow;
mod lifetimes;
mod queues;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use super::instruction::{Action, Instruction};
use super::program::{Program, Section, SectionKind, Stage, Types};
use device::Queue;
use graph::ScopeId;
use ops::{DType, TensorType, ValueId};

/// A rule that no pass may break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invariant {
    /// Operands have the types that their operation takes and gives.
    Types,
    /// What is read was written before.
    WriterDominates,
    /// Nothing reads a value after it was overwritten, and nothing is written twice, nor a part of it.
    NotOverwritten,
    /// Every trainable parameter has exactly one complete gradient when it is updated.
    OneGradient,
    /// Each micro-batch has its share of the batch's samples in each loss, these sum to one, and all losses are one sum.
    SharesSumToOne,
    /// Each random draw has its own site, the one it was given when the program was built.
    RandomSites,
    /// FLOPs less recomputation are the model's.
    Flops,
    /// A view has its parent's dtype, role and pool, and lies within it; a version lies where the one before it lay.
    Containment,
    /// Launches work on memory of their processor, copies go between pools or within them.
    Homes,
    /// What crosses queues is ordered by an event.
    Events,
    /// Each storage is allocated once and freed exactly once, around all its uses.
    FreedOnce,
    /// Storages that are alive together do not overlap; in an arena each has a place.
    Overlap,
    /// A section begins with what the ones before it leave.
    Carried,
}

/// A broken invariant: a mistake in a pass.
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
            "the program is broken after `{pass}` ({invariant:?}): {detail}; this is a mistake in runner"
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

/// Checks every invariant that the program's stage calls for.
///
/// # Errors
/// The first invariant found broken, and where.
pub fn verify(program: &Program) -> Result<(), Violation> {
    containment(program)?;
    let known = dataflow::Known::of(program);
    let makes_late = program.made_late().next().is_some();
    for (index, section) in program.sections.iter().enumerate() {
        if !makes_late {
            check_section(program, section, &known)?;
            continue;
        }
        check_section(program, &section.later(), &known)?;
        // An evaluation begins with all that there will be.
        if !section.kind.is_of_evaluation() {
            check_section(program, &program.first_time(index), &known)?;
        }
    }
    random_sites(program)?;
    flops(program)?;
    shares(program)?;
    if program.stage >= Stage::Differentiated {
        one_gradient(program)?;
    }
    if program.stage >= Stage::Sectioned {
        every_sample(program)?;
        one_sum(program)?;
    }
    if program.stage >= Stage::Updated {
        one_update(program)?;
        carried(program)?;
    }
    Ok(())
}

fn check_section(program: &Program, section: &Section, known: &dataflow::Known) -> Result<(), Violation> {
    types(program, section)?;
    homes(program, section)?;
    dataflow::check(program, section, known)?;
    if program.stage >= Stage::Ordered {
        queues::check(program, section)?;
    }
    if program.stage >= Stage::Released {
        lifetimes::freed_once(program, section)?;
    }
    if program.stage >= Stage::Placed {
        lifetimes::overlap(program, section)?;
    }
    Ok(())
}

/// `blocks.0.mlp linear-gelu`, for people.
fn at(program: &Program, section: &Section, instruction: &Instruction) -> String {
    let scope = &program.scope(instruction.scope).path;
    let what = match &instruction.action {
        Action::Launch { op, .. } => op.name(),
        Action::Copy { .. } => "copy",
        Action::Record { .. } => "record",
        Action::Wait { .. } => "wait",
        Action::Allocate(_) => "allocate",
        Action::Free(_) => "free",
        Action::Leak(_) => "leak",
        Action::EmptyCache => "empty cache",
    };
    format!("{} {scope} {what}", section.kind.name())
}

fn types(program: &Program, section: &Section) -> Result<(), Violation> {
    let mut types = Types::default();
    let dtypes_are_open = program.stage < Stage::Typed;
    for instruction in &section.code {
        let found = match &instruction.action {
            Action::Launch { op, inputs, outputs, .. } => {
                types.of(&program.values, inputs, outputs);
                let Types { inputs, outputs } = &mut types;
                if dtypes_are_open {
                    inputs.iter_mut().chain(outputs.iter_mut()).for_each(leave_open);
                }
                let mut made = op.outputs(inputs);
                if let (true, Ok(made)) = (dtypes_are_open, &mut made) {
                    made.iter_mut().for_each(leave_open);
                }
                match made {
                    Err(error) => Some(error.to_string()),
                    Ok(types) if types != *outputs => Some(format!("gives {types:?}, not {outputs:?}")),
                    Ok(_) => None,
                }
            }
            Action::Copy { from, to, .. } => {
                // Of what whole batches have, the share of the samples that the section sees of one of them.
                let (all, samples) = match program.value(*from).like.batches() {
                    Some(batches) => (program.samples * program.batches(batches), section.samples),
                    None => (1, 1),
                };
                let (from, to) = (program.ty(*from), program.ty(*to));
                let times = |bytes: u64, count: usize| u128::from(bytes) * count as u128;
                let fits = times(from.bytes(), samples) == times(to.bytes(), all);
                (!fits || from.dtype != to.dtype).then(|| format!("copies {from} to {to}"))
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
            let detail = format!("{} lies elsewhere than what it updates", program.full_name(id));
            return broken(Invariant::Containment, detail);
        }
        let Some(view) = value.view else { continue };
        let parent = program.value(view.of);
        let alike = (value.ty.dtype, value.role, value.pool, value.storage)
            == (parent.ty.dtype, parent.role, parent.pool, parent.storage);
        let within = value.offset == program.view_offset(view)
            && value.offset >= parent.offset
            && value.offset + value.ty.bytes() <= parent.offset + parent.ty.bytes();
        if !alike || !within {
            let detail = format!("{} as part of {}", program.full_name(id), program.full_name(view.of));
            return broken(Invariant::Containment, detail);
        }
    }
    Ok(())
}

fn homes(program: &Program, section: &Section) -> Result<(), Violation> {
    use device::Pool;
    for instruction in &section.code {
        let on_device = |id: ValueId| program.value(id).pool == Pool::Device;
        let at_home = |id: ValueId| program.value(id).pool.home() == instruction.home;
        let right = match &instruction.action {
            launch @ Action::Launch { .. } if program.stage >= Stage::Brought => {
                launch.touches().all(at_home)
            }
            // What is brought and taken back goes by the copy queue; results go out behind the work that made them.
            Action::Copy { queue: Queue::Copy, from, to } => on_device(*from) != on_device(*to),
            Action::Copy { queue: Queue::Compute, from, .. } => on_device(*from),
            Action::Copy { queue: Queue::Host, .. } => false,
            _ => true,
        };
        if !right {
            return broken(Invariant::Homes, at(program, section, instruction));
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
                program.stands_for(outputs[0]) == program.parameters[parameter].value
            });
            if !own || of.is_some_and(|&parameter| std::mem::replace(&mut seen[parameter], true)) {
                let detail = format!("{} draws from site {site}", at(program, section, instruction));
                return broken(Invariant::RandomSites, detail);
            }
        }
    }
    program.sections.iter().try_for_each(|section| dropped_sites(program, section))
}

/// What a forward pass leaves to chance at a site is left to it once, and the same is whatever is computed again or
/// differentiated there.
fn dropped_sites(program: &Program, section: &Section) -> Result<(), Violation> {
    let mut seen = HashMap::new();
    for instruction in &section.code {
        let Action::Launch { op, .. } = &instruction.action else { continue };
        let Some(dropped) = op.drops() else { continue };
        let is_first = instruction.phase != device::Phase::Backward;
        let before = seen.entry(dropped.site).or_insert((instruction.scope, dropped, 0));
        before.2 += usize::from(is_first);
        let is_same = (before.0, before.1) == (instruction.scope, dropped);
        if !is_same || before.2 != 1 || section.kind.is_of_evaluation() {
            let detail = format!("{} drops at site {}", at(program, section, instruction), dropped.site);
            return broken(Invariant::RandomSites, detail);
        }
    }
    Ok(())
}

/// Where a step sees samples, each gradient is written anew once, or only added to if it is carried in.
fn one_gradient(program: &Program) -> Result<(), Violation> {
    for section in program.step().filter(|section| section.samples > 0) {
        let carried = program.marked(&section.entry);
        let mut anew = vec![0u32; program.values.len()];
        let mut updated = vec![0u32; program.values.len()];
        let origin = |mut id: ValueId| {
            while let Some(previous) = program.value(id).previous {
                id = previous;
            }
            id
        };
        for instruction in &section.code {
            for &write in instruction.action.writes() {
                let value = program.value(write);
                if value.role == device::Role::Gradient {
                    let first = origin(write);
                    // What sums up elsewhere may be stored here as the first that there is.
                    let is_there = anew[first.index()] > 0 || carried[program.storage(first).index()];
                    match value.previous {
                        Some(_) if is_there => updated[first.index()] += 1,
                        _ => anew[first.index()] += 1,
                    }
                }
            }
        }
        for parameter in &program.parameters {
            let trainable = program.buckets[parameter.bucket].trainable;
            let gradient = match parameter.gradient {
                Some(gradient) if trainable => gradient,
                None if !trainable => continue,
                _ => return broken(Invariant::OneGradient, program.full_name(parameter.value)),
            };
            let carried = carried[program.storage(gradient).index()];
            let (anew, updated) = (anew[gradient.index()], updated[gradient.index()]);
            let right = if carried { anew == 0 && updated > 0 } else { anew == 1 };
            if !right {
                let name = program.full_name(parameter.value);
                let kind = section.kind.name();
                let detail = format!("{name} gets {anew} gradients and {updated} additions in {kind}");
                return broken(Invariant::OneGradient, detail);
            }
        }
    }
    Ok(())
}

/// In a step, each bucket that is trained is updated once, with its own gradients, in whichever section. Nothing is added to
/// these any more then.
fn one_update(program: &Program) -> Result<(), Violation> {
    // By the parameters updated: how often, and with which gradients.
    let mut updates: HashMap<ValueId, (usize, ValueId)> = HashMap::new();
    let mut applied = vec![false; program.values.len()];
    let mut zeros: HashSet<ValueId> = HashSet::new();
    for section in program.step() {
        for instruction in &section.code {
            if let Action::Launch { op, inputs, outputs, .. } = &instruction.action
                && let Some(update) = op.as_update()
            {
                let there = |id| program.stands_for(id);
                let parameters = program.storage(there(outputs[0]));
                let gradients = there(inputs[update.gradients_input()]);
                let is_own = |&(output, input): &(usize, usize)| {
                    program.storage(there(outputs[output])) == program.storage(there(inputs[input]))
                };
                if !op.updates().iter().all(is_own) {
                    let detail =
                        format!("{} keeps something else than it had", at(program, section, instruction));
                    return broken(Invariant::OneGradient, detail);
                }
                updates.entry(parameters).or_insert((0, gradients)).0 += section.times;
                applied[program.storage(gradients).index()] = true;
                continue;
            }
            // Zeros, and zeros that are taken back.
            match &instruction.action {
                Action::Launch { op, outputs, .. } if op.is_zeros() => {
                    zeros.extend(outputs.iter().copied());
                    continue;
                }
                Action::Copy { from, .. } if zeros.contains(from) => continue,
                _ => {}
            }
            let late = instruction.action.writes().iter().find(|id| applied[program.storage(**id).index()]);
            if let Some(&id) = late {
                let name = program.full_name(id);
                let detail =
                    format!("{} adds to {name} after it was applied", at(program, section, instruction));
                return broken(Invariant::OneGradient, detail);
            }
        }
    }
    for bucket in &program.buckets {
        let found = updates.get(&bucket.parameters).copied();
        let right = match (found, bucket.gradients) {
            (Some((times, gradients)), Some(own)) => bucket.trainable && times == 1 && gradients == own,
            (None, None) => !bucket.trainable,
            _ => false,
        };
        if !right {
            let times = found.map_or(0, |(times, _)| times);
            let detail = format!("{} is updated {times} times", program.full_name(bucket.parameters));
            return broken(Invariant::OneGradient, detail);
        }
    }
    Ok(())
}

fn flops(program: &Program) -> Result<(), Violation> {
    for section in &program.sections {
        let flops = program.flops_of(section.code.iter().filter(|instruction| instruction.is_of_model()));
        if flops != section.model_flops {
            let (kind, model) = (section.kind.name(), section.model_flops);
            return broken(Invariant::Flops, format!("{kind} has {flops} FLOPs, the model {model}"));
        }
    }
    Ok(())
}

/// Numbers of any kind are one kind.
fn leave_open(ty: &mut TensorType) {
    if ty.dtype.is_float() {
        ty.dtype = DType::F32;
    }
}

/// In each section of a step, each loss counts for the share of the batch's samples that the section sees: those of one
/// scope, all slices together, are one.
fn shares(program: &Program) -> Result<(), Violation> {
    for section in program.step() {
        let mut sums: BTreeMap<ScopeId, f64> = BTreeMap::new();
        for instruction in &section.code {
            if let Action::Launch { op, inputs, .. } = &instruction.action
                && let Some(loss) = op.as_loss()
            {
                *sums.entry(instruction.scope).or_default() += loss.share(&program.types(inputs));
            }
        }
        let share = section.samples as f64 / program.batch_size as f64;
        if let Some((&scope, sum)) = sums.iter().find(|(_, sum)| (*sum - share).abs() > 1e-6 * share) {
            let (kind, path) = (section.kind.name(), &program.scope(scope).path);
            let detail = format!("those of {path} sum to {sum} in {kind}, which sees {share} of the batch");
            return broken(Invariant::SharesSumToOne, detail);
        }
    }
    Ok(())
}

/// All losses of a step add to the same.
fn one_sum(program: &Program) -> Result<(), Violation> {
    let sum = program.loss.map(|loss| program.storage(loss));
    for section in program.step() {
        for instruction in &section.code {
            if let Action::Launch { op, outputs, .. } = &instruction.action
                && op.as_loss().is_some()
                && Some(program.storage(program.stands_for(outputs[0]))) != sum
            {
                let detail = format!("{} is a sum of its own", at(program, section, instruction));
                return broken(Invariant::SharesSumToOne, detail);
            }
        }
    }
    Ok(())
}

/// A step sees as many samples as the rank has of a batch, and so does the evaluation of one.
fn every_sample(program: &Program) -> Result<(), Violation> {
    let seen = |sections: &mut dyn Iterator<Item = &Section>| -> Option<usize> {
        sections.map(|section| section.times * section.samples).reduce(|all, more| all + more)
    };
    let seen = [seen(&mut program.step()), seen(&mut program.evaluation())];
    match seen.into_iter().flatten().find(|samples| *samples != program.samples) {
        Some(samples) => {
            let detail = format!("{samples} samples of {} are seen", program.samples);
            broken(Invariant::SharesSumToOne, detail)
        }
        None => Ok(()),
    }
}

/// Each section with each that may come right after it.
fn successions(program: &Program) -> Vec<(&Section, &Section)> {
    let start = program.sections.iter().filter(|section| section.kind == SectionKind::Start).collect();
    let rounds: [Vec<&Section>; 3] = [start, program.step().collect(), program.evaluation().collect()];
    let mut successions = Vec::new();
    for round in &rounds {
        successions.extend(round.windows(2).map(|pair| (pair[0], pair[1])));
        successions.extend(round.iter().filter(|section| section.times > 1).map(|&again| (again, again)));
    }
    // Any step and any evaluation may follow whatever has ended.
    for last in rounds.iter().filter_map(|round| round.last()) {
        successions.extend(rounds[1..].iter().filter_map(|round| Some((*last, *round.first()?))));
    }
    successions
}

/// What a section leaves is what each that may follow it begins with.
fn carried(program: &Program) -> Result<(), Violation> {
    let sorted = |ids: &[ValueId]| {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids
    };
    for (before, after) in successions(program) {
        // What is made late is there when what follows the first step begins, and before an evaluation.
        let late: Vec<ValueId> = match before.kind {
            SectionKind::Start => program.made_late().collect(),
            _ => Vec::new(),
        };
        if sorted(&[&before.exit[..], &late].concat()) != sorted(&after.entry) {
            let detail = format!("{} after {}", after.kind.name(), before.kind.name());
            return broken(Invariant::Carried, detail);
        }
    }
    match program.section(SectionKind::Start) {
        Some(start) if start.entry.is_empty() => Ok(()),
        _ => broken(Invariant::Carried, "nothing is there before the start"),
    }
}
