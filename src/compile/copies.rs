//! Work goes to the processor it is marked for. What lives in another pool is brought there ahead of its use, and taken
//! back; what backward needs of the forward pass may leave for the time between.

use std::collections::{HashMap, HashSet};

use super::instruction::{Action, Instruction};
use super::program::{Program, Spillable, Stage};
use super::value::{Form, Value};
use super::{Annotations, Draft};
use device::{Phase, Pool, Queue, Role};
use graph::ScopeId;
use ops::{TensorType, ValueId};

pub(super) fn bring(draft: &mut Draft) {
    let program = &mut draft.program;
    for section in 0..program.sections.len() {
        let mut code = std::mem::take(&mut program.sections[section].code);
        code.iter_mut()
            .for_each(|instruction| instruction.home = draft.annotations.home(program, instruction));
        let spilled = match draft.annotations.spilled {
            Some(least) => spill(program, &code, least, draft.annotations.host),
            None => HashMap::new(),
        };
        program.sections[section].code = bring_in(program, code, spilled, &draft.annotations);
    }
    program.stage = Stage::Brought;
}

/// Whether a value of this type is spilled where all of at least so many bytes are.
pub(super) fn is_spilled(ty: TensorType, least: u64) -> bool {
    ty.bytes() >= least
}

/// Chooses what leaves the device between the passes of a section: what the forward pass makes there and backward reads, but
/// for what the layer makes with which backward begins. Returns where each goes.
fn spill(program: &mut Program, code: &[Instruction], least: u64, host: Pool) -> HashMap<ValueId, ValueId> {
    let Some(backward) = code.iter().position(|instruction| instruction.phase == Phase::Backward) else {
        return HashMap::new();
    };
    let layer = |instruction: &Instruction| program.scope(instruction.scope).layer;
    let last = code[..backward].last().map(layer);
    let reads = code[backward..].iter().flat_map(|instruction| instruction.action.reads());
    let needed: HashSet<ValueId> = reads.copied().collect();
    // What is written more than once, or in parts, is no one value.
    let mut written: HashMap<ValueId, usize> = HashMap::new();
    for id in code.iter().flat_map(|instruction| instruction.action.writes()) {
        *written.entry(program.storage(*id)).or_default() += 1;
    }
    let leaves = |id: &ValueId| {
        let value = program.value(*id);
        let is_kept = matches!(value.form, Form::Primal | Form::Cast) && value.role == Role::Activation;
        is_kept
            && value.pool == Pool::Device
            && value.storage == *id
            && written[id] == 1
            && needed.contains(id)
    };
    let made = code[..backward].iter().filter(|instruction| {
        let is_launch = matches!(instruction.action, Action::Launch { .. });
        is_launch && instruction.home == Pool::Device && Some(layer(instruction)) != last
    });
    let candidates: Vec<ValueId> =
        made.flat_map(|instruction| instruction.action.writes().iter().copied().filter(leaves)).collect();
    let mut spilled = HashMap::new();
    for value in candidates {
        let is_spilled = is_spilled(program.ty(value), least);
        program.spillable.push(Spillable { value, is_spilled });
        if is_spilled {
            let there = program.value(value).clone();
            spilled.insert(value, program.add_like(Value { pool: host, ..there }));
        }
    }
    spilled
}

fn bring_in(
    program: &mut Program,
    code: Vec<Instruction>,
    spilled: HashMap<ValueId, ValueId>,
    annotations: &Annotations,
) -> Vec<Instruction> {
    let mut here = Here {
        program,
        annotations,
        spilled,
        stretch: None,
        of: HashMap::new(),
        written: HashMap::new(),
        stored: HashMap::new(),
        outdated: Vec::new(),
        casts: HashMap::new(),
    };
    let code = code.into_iter().enumerate();
    let mut moved: Vec<Moved> =
        code.map(|(index, instruction)| here.instruction(index, instruction)).collect();
    let outdated = std::mem::take(&mut here.outdated);
    outdated
        .into_iter()
        .for_each(|(index, here)| moved[index].stores.retain(|store| store.action.reads() != [here]));
    let mut fetches: Vec<Vec<Instruction>> = vec![Vec::new(); moved.len()];
    for (index, before) in begins_to_bring(&moved, annotations.ahead).into_iter().enumerate() {
        for (there_from, fetch) in &moved[index].fetches {
            fetches[before.max(*there_from)].push(fetch.clone());
        }
    }
    let mut result = Vec::with_capacity(moved.len());
    // A model that is made elsewhere is whole before any of it leaves; what is made of it here comes behind that.
    let (mut leaving, mut behind) = (Vec::new(), Vec::new());
    let mut left: HashSet<ValueId> = HashSet::new();
    for (moved, fetches) in moved.into_iter().zip(fetches) {
        let storages = |ids: &[ValueId]| ids.iter().map(|&id| program.storage(id)).collect::<Vec<_>>();
        let work: Vec<Instruction> =
            fetches.into_iter().chain(moved.casts).chain([moved.instruction]).collect();
        let is_behind = |instruction: &Instruction| {
            storages(instruction.action.reads()).iter().any(|storage| left.contains(storage))
        };
        if work.iter().any(is_behind) {
            let work = work.into_iter().chain(moved.stores);
            behind.extend(work.inspect(|done| left.extend(storages(done.action.writes()))));
            continue;
        }
        let waits =
            annotations.made.is_some() && work.iter().any(|instruction| instruction.phase == Phase::Start);
        result.extend(work);
        if waits {
            left.extend(moved.stores.iter().flat_map(|store| storages(store.action.writes())));
            leaving.extend(moved.stores);
        } else {
            result.extend(moved.stores);
        }
    }
    result.extend(leaving.into_iter().chain(behind));
    result
}

/// By instruction: the one before which what it needs is brought, if that is there by then. That is where the layer begins
/// that is so many before its own, or with none the instruction itself.
fn begins_to_bring(moved: &[Moved], ahead: usize) -> Vec<usize> {
    let mut beginnings: Vec<usize> = Vec::new();
    let mut last = None;
    let mut begins = Vec::with_capacity(moved.len());
    for (index, moved) in moved.iter().enumerate() {
        let is_launch = matches!(moved.instruction.action, Action::Launch { .. });
        if is_launch && last != Some(moved.stretch) {
            last = Some(moved.stretch);
            beginnings.push(index);
        }
        let earlier = beginnings.len().saturating_sub(1 + ahead);
        begins.push(if ahead == 0 { index } else { beginnings.get(earlier).copied().unwrap_or(index) });
    }
    begins
}

/// Code about one layer, in one pass; none if slices of a loss go through their layers forward and backward in turns.
type Stretch = Option<(ScopeId, Phase)>;

/// An instruction on values of its home, and the copies that it takes.
struct Moved {
    stretch: Stretch,
    /// With the first instruction before which each can be.
    fetches: Vec<(usize, Instruction)>,
    /// What is cast again of what was brought.
    casts: Vec<Instruction>,
    instruction: Instruction,
    stores: Vec<Instruction>,
}

/// What stands at one home for values of another, for as long as the code is about one layer.
struct Here<'a> {
    program: &'a mut Program,
    annotations: &'a Annotations,
    /// Where the forward pass's values go that are not here in backward.
    spilled: HashMap<ValueId, ValueId>,
    /// None before the first.
    stretch: Option<Stretch>,
    of: HashMap<(Pool, ValueId), ValueId>,
    /// By storage that something is written to: the instruction behind the last that did.
    written: HashMap<ValueId, usize>,
    /// By what stands here for something since it was made here, and was taken back: the launch, and that which it stands for.
    stored: HashMap<ValueId, (usize, ValueId)>,
    /// What need not be taken back, being overwritten before anybody reads it there: the launch that made it, and it.
    outdated: Vec<(usize, ValueId)>,
    /// By what a launch casts of values that live elsewhere: where that was, and the launch, on what it casts there.
    casts: HashMap<ValueId, (Stretch, Instruction)>,
}

impl Here<'_> {
    fn instruction(&mut self, number: usize, mut instruction: Instruction) -> Moved {
        let (mut fetches, mut stores, mut casts) = (Vec::new(), Vec::new(), Vec::new());
        let (scope, phase, home) = (instruction.scope, instruction.phase, instruction.home);
        // An update in the backward pass has what that has brought for its layer.
        let pass = if phase == Phase::Update { Phase::Backward } else { phase };
        let stretch = instruction.slice.is_none().then(|| (self.program.scope(scope).layer, pass));
        let written: Vec<ValueId> =
            instruction.action.writes().iter().map(|&id| self.program.storage(id)).collect();
        self.is_read(&instruction);
        let cast = instruction.action.is_cast().then(|| instruction.clone());
        if let Action::Launch { op, inputs, outputs, .. } = &mut instruction.action {
            if self.stretch != Some(stretch) {
                self.stretch = Some(stretch);
                self.of.clear();
                self.stored.clear();
            }
            for input in inputs.iter_mut() {
                *input = self.input(*input, (scope, phase, home), &mut fetches, &mut casts);
            }
            for (index, output) in outputs.iter_mut().enumerate() {
                let there = *output;
                if let Some(&host) = self.spilled.get(&there) {
                    stores.push(copy(there, host, scope, phase));
                }
                if self.program.value(there).pool.home() == home {
                    continue;
                }
                let updated = op.updates().iter().find(|(updating, _)| *updating == index);
                *output = match updated {
                    Some(&(_, input)) => {
                        let stored = self.stored.remove(&inputs[input]);
                        self.outdated.extend(stored.map(|(launch, _)| (launch, inputs[input])));
                        self.program.add_version(inputs[input])
                    }
                    None => self.stand_in((home, phase), there),
                };
                self.stands(home, there, *output);
                self.stored.insert(*output, (number, there));
                stores.push(copy(*output, there, scope, phase));
            }
        }
        let lives_elsewhere = |of: &ValueId| self.program.value(*of).pool.home() != home;
        if let Some(cast) = cast.filter(|cast| cast.action.reads().iter().any(lives_elsewhere)) {
            let made = cast.action.writes().iter();
            self.casts.extend(made.map(|&made| (made, (stretch, cast.clone()))));
        }
        // What is taken back is there behind this instruction, as is what it writes at home.
        self.written.extend(written.into_iter().map(|storage| (storage, number + 1)));
        Moved { stretch, fetches, casts, instruction, stores }
    }

    /// What is read where it lives has to be there.
    fn is_read(&mut self, instruction: &Instruction) {
        if self.stored.is_empty() {
            return;
        }
        let program = &*self.program;
        let is_launch = matches!(instruction.action, Action::Launch { .. });
        let reads: Vec<ValueId> =
            instruction.action.reads().iter().map(|&read| program.storage(read)).collect();
        self.stored.retain(|_, (_, there)| {
            let lives_here = !is_launch || program.value(*there).pool.home() == instruction.home;
            !(lives_here && reads.contains(&program.storage(*there)))
        });
    }

    /// What an operand is at home.
    fn input(
        &mut self,
        there: ValueId,
        (scope, phase, home): (ScopeId, Phase, Pool),
        fetches: &mut Vec<(usize, Instruction)>,
        casts: &mut Vec<Instruction>,
    ) -> ValueId {
        if let Some(&here) = self.of.get(&(home, there)) {
            return here;
        }
        if let Some(again) = self.cast_elsewhere(there) {
            return self.cast_again(there, again, (scope, phase, home), fetches, casts);
        }
        let from = match self.spilled.get(&there) {
            Some(&host) if phase == Phase::Backward => host,
            _ => there,
        };
        if self.program.value(from).pool.home() == home {
            return from;
        }
        let here = self.stand_in((home, phase), there);
        let written = self.written.get(&self.program.storage(there)).copied().unwrap_or(0);
        fetches.push((written, copy(from, here, scope, phase)));
        here
    }

    /// The launch that cast it for another layer or pass, of what lives elsewhere: it would have to stay for as long as no
    /// parameter does.
    fn cast_elsewhere(&self, cast: ValueId) -> Option<Instruction> {
        let (stretch, launch) = self.casts.get(&cast)?;
        (Some(*stretch) != self.stretch).then(|| launch.clone())
    }

    fn cast_again(
        &mut self,
        cast: ValueId,
        launch: Instruction,
        (scope, phase, home): (ScopeId, Phase, Pool),
        fetches: &mut Vec<(usize, Instruction)>,
        casts: &mut Vec<Instruction>,
    ) -> ValueId {
        let Action::Launch { op, inputs, outputs, .. } = launch.action else {
            unreachable!("a cast is a launch")
        };
        let of = outputs.iter().position(|output| *output == cast).expect("it makes the cast");
        let input = self.input(inputs[of], (scope, phase, home), fetches, casts);
        let here = self.stand_in((home, phase), cast);
        let action = Action::Launch { op, inputs: vec![input], outputs: vec![here], workspace: None };
        casts.push(Instruction { recompute: true, home, ..Instruction::new(action, scope, phase) });
        here
    }

    fn stand_in(&mut self, (home, phase): (Pool, Phase), there: ValueId) -> ValueId {
        let value = self.program.value(there).clone();
        let pool = self.annotations.at_work(home, phase);
        let here = self.program.add_like(Value { pool, ..value });
        self.stands(home, there, here);
        here
    }

    fn stands(&mut self, home: Pool, there: ValueId, here: ValueId) {
        self.of.insert((home, there), here);
        self.program.stand_ins.insert(here, there);
    }
}

fn copy(from: ValueId, to: ValueId, scope: ScopeId, phase: Phase) -> Instruction {
    Instruction::new(Action::Copy { queue: Queue::Copy, from, to }, scope, phase)
}
