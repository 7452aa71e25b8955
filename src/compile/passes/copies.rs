//! Inserts transfers. Every instruction gets its device; operands whose pool is on the other device are copied ahead
//! of their use, and results are copied back. Activations can be offloaded between forward and backward.

use std::collections::{HashMap, HashSet};

use super::Draft;
use super::annotations::Annotations;
use super::gathers::{self, Gathered};
use crate::ir::{Action, Instruction, Offloadable, Program, Stage, Value, Variant, View};
use device::{Phase, Pool, Queue, Role};
use graph::ScopeId;
use ops::{TensorType, ValueId};

pub(super) fn insert(draft: &mut Draft) {
    let program = &mut draft.program;
    for section in 0..program.sections.len() {
        let mut code = std::mem::take(&mut program.sections[section].code);
        let cast_before = gathers::remove_casts(program, &mut code);
        code.iter_mut()
            .for_each(|instruction| instruction.device = draft.annotations.device_for(program, instruction));
        let offloaded = match draft.annotations.min_offload_bytes {
            Some(least) => choose_offloaded(program, &code, least, draft.annotations.host),
            None => HashMap::new(),
        };
        program.sections[section].code =
            insert_transfers(program, code, offloaded, cast_before, &draft.annotations);
    }
    program.stage = Stage::Transferred;
}

/// Whether a value of this type is large enough to be offloaded: at least `least` bytes.
pub(crate) fn is_offloaded(ty: TensorType, least: u64) -> bool {
    ty.bytes() >= least
}

/// Chooses the values of a section that are offloaded between its passes: device values of at least `least` bytes that
/// forward writes once and backward reads, except views and the values of the head, where backward begins. Records them in
/// `program.offloadable` and returns the host copy of each.
fn choose_offloaded(
    program: &mut Program,
    code: &[Instruction],
    least: u64,
    host: Pool,
) -> HashMap<ValueId, ValueId> {
    let Some(backward) = code.iter().position(|instruction| instruction.phase == Phase::Backward) else {
        return HashMap::new();
    };
    let layer = |instruction: &Instruction| program.scope(instruction.scope).layer;
    let last = code[..backward].last().map(layer);
    let reads = code[backward..].iter().flat_map(|instruction| instruction.action.reads());
    let needed: HashSet<ValueId> = reads.copied().collect();
    // A storage that is written more than once, or in parts, is not offloaded.
    let mut written: HashMap<ValueId, usize> = HashMap::new();
    for id in code.iter().flat_map(|instruction| instruction.action.writes()) {
        *written.entry(program.storage(*id)).or_default() += 1;
    }
    let can_offload = |id: &ValueId| {
        let value = program.value(*id);
        let is_kept =
            matches!(value.variant, Variant::Primal | Variant::Cast) && value.role == Role::Activation;
        is_kept
            && value.pool == Pool::Device
            && value.storage == *id
            && written[id] == 1
            && needed.contains(id)
    };
    let launches = code[..backward].iter().filter(|instruction| {
        let is_launch = matches!(instruction.action, Action::Launch { .. });
        is_launch && instruction.device == Pool::Device && Some(layer(instruction)) != last
    });
    let candidates: Vec<ValueId> = launches
        .flat_map(|instruction| instruction.action.writes().iter().copied().filter(can_offload))
        .collect();
    let mut offloaded = HashMap::new();
    for value in candidates {
        let is_offloaded = is_offloaded(program.ty(value), least);
        program.offloadable.push(Offloadable { value, is_offloaded });
        if is_offloaded {
            let original = program.value(value).clone();
            offloaded.insert(value, program.add_like(Value { pool: host, ..original }));
        }
    }
    offloaded
}

fn insert_transfers(
    program: &mut Program,
    code: Vec<Instruction>,
    offloaded: HashMap<ValueId, ValueId>,
    cast_before: HashMap<ValueId, ValueId>,
    annotations: &Annotations,
) -> Vec<Instruction> {
    let mut copies = LocalCopies {
        program,
        annotations,
        offloaded,
        layer_pass: None,
        copies: HashMap::new(),
        cast_before,
        gathered: Gathered::default(),
        written: HashMap::new(),
        pending_stores: HashMap::new(),
        dead_stores: Vec::new(),
        casts: HashMap::new(),
    };
    let code = code.into_iter().enumerate();
    let mut transferred: Vec<Transferred> =
        code.map(|(index, instruction)| copies.instruction(index, instruction)).collect();
    let dead_stores = std::mem::take(&mut copies.dead_stores);
    dead_stores
        .into_iter()
        .for_each(|(index, local)| transferred[index].stores.retain(|store| store.action.reads() != [local]));
    let mut fetches: Vec<Vec<Instruction>> = vec![Vec::new(); transferred.len()];
    let points =
        [annotations.ahead, annotations.gather_ahead].map(|ahead| prefetch_points(&transferred, ahead));
    for (index, transferred) in transferred.iter().enumerate() {
        for (earliest, fetch) in &transferred.fetches {
            let is_copy = matches!(fetch.action, Action::Copy { .. });
            let before = points[usize::from(!is_copy)][index];
            fetches[before.max(*earliest)].push(fetch.clone());
        }
    }
    let mut result = Vec::with_capacity(transferred.len());
    // With `init = "host"`, the whole model is initialised before any of it is copied to the device; instructions
    // that read the copies come after.
    let (mut delayed_stores, mut delayed) = (Vec::new(), Vec::new());
    // The number of instructions up to the last initial value.
    let mut initialised = 0;
    let mut delayed_storages: HashSet<ValueId> = HashSet::new();
    for (transferred, fetches) in transferred.into_iter().zip(fetches) {
        let storages = |ids: &[ValueId]| ids.iter().map(|&id| program.storage(id)).collect::<Vec<_>>();
        let work: Vec<Instruction> =
            fetches.into_iter().chain(transferred.casts).chain([transferred.instruction]).collect();
        let is_delayed = |instruction: &Instruction| {
            storages(instruction.action.reads()).iter().any(|storage| delayed_storages.contains(storage))
        };
        if work.iter().any(is_delayed) {
            let work = work.into_iter().chain(transferred.stores);
            delayed.extend(work.inspect(|done| delayed_storages.extend(storages(done.action.writes()))));
            continue;
        }
        let delays_stores = annotations.init_pool.is_some()
            && work.iter().any(|instruction| instruction.phase == Phase::Start);
        result.extend(work);
        if delays_stores && !transferred.stores.is_empty() {
            delayed_storages
                .extend(transferred.stores.iter().flat_map(|store| storages(store.action.writes())));
            delayed_stores.extend(transferred.stores);
            initialised = result.len();
        } else {
            result.extend(transferred.stores);
        }
    }
    if program.share.is_some() {
        // Before the states are added, of which ranks have shares.
        let rest = result.split_off(initialised);
        result.extend(share_each(program, delayed_stores, delayed));
        result.extend(rest);
    } else {
        result.extend(delayed_stores.into_iter().chain(delayed));
    }
    result
}

/// Stores, each followed by the instructions for which all is written then, so that a whole bucket is freed before the next is
/// stored.
fn share_each(program: &Program, stores: Vec<Instruction>, delayed: Vec<Instruction>) -> Vec<Instruction> {
    let storages = |ids: &[ValueId]| ids.iter().map(|&id| program.storage(id)).collect::<Vec<ValueId>>();
    // By storage: the writes that are still missing.
    let mut missing: HashMap<ValueId, usize> = HashMap::new();
    for instruction in stores.iter().chain(&delayed) {
        storages(instruction.action.writes()).into_iter().for_each(|id| *missing.entry(id).or_default() += 1);
    }
    let mut result = Vec::with_capacity(stores.len() + delayed.len());
    let mut waiting = delayed;
    for store in stores {
        let mut ready = vec![store];
        while !ready.is_empty() {
            let written = ready.iter().flat_map(|instruction| storages(instruction.action.writes()));
            written.for_each(|id| *missing.get_mut(&id).expect("counted") -= 1);
            result.extend(ready);
            let is_ready = |instruction: &Instruction| {
                storages(instruction.action.reads())
                    .iter()
                    .all(|id| missing.get(id).is_none_or(|missing| *missing == 0))
            };
            (ready, waiting) = waiting.into_iter().partition(is_ready);
        }
    }
    result.extend(waiting);
    result
}

/// The prefetch point of each instruction: its operands are copied `ahead` layers before their use, at the start of that
/// layer, or right before the instruction if `ahead` is 0. Operands that are written later are copied later.
fn prefetch_points(transferred: &[Transferred], ahead: usize) -> Vec<usize> {
    let mut layer_starts: Vec<usize> = Vec::new();
    let mut last = None;
    let mut points = Vec::with_capacity(transferred.len());
    for (index, transferred) in transferred.iter().enumerate() {
        let is_launch = matches!(transferred.instruction.action, Action::Launch { .. });
        if is_launch && last != Some(transferred.layer_pass) {
            last = Some(transferred.layer_pass);
            layer_starts.push(index);
        }
        let earlier = layer_starts.len().saturating_sub(1 + ahead);
        points.push(if ahead == 0 { index } else { layer_starts.get(earlier).copied().unwrap_or(index) });
    }
    points
}

/// A layer and a pass; `None` for slices of a loss, whose layers alternate between forward and backward.
type LayerPass = Option<(ScopeId, Phase)>;

/// An instruction on local operands, with its transfers.
struct Transferred {
    layer_pass: LayerPass,
    /// Each with the earliest instruction before which it can run.
    fetches: Vec<(usize, Instruction)>,
    /// Casts of remote values that are repeated on local copies.
    casts: Vec<Instruction>,
    instruction: Instruction,
    stores: Vec<Instruction>,
}

/// Device-local copies of remote values, valid within one layer and pass.
struct LocalCopies<'a> {
    program: &'a mut Program,
    annotations: &'a Annotations,
    /// Host copies of values that are offloaded between forward and backward.
    offloaded: HashMap<ValueId, ValueId>,
    /// `None` before the first instruction.
    layer_pass: Option<LayerPass>,
    copies: HashMap<(Pool, ValueId), ValueId>,
    /// By cast of a parameter whose share is cast before it is gathered: the parameter.
    cast_before: HashMap<ValueId, ValueId>,
    gathered: Gathered,
    /// By storage: the instruction after the last one that writes it.
    written: HashMap<ValueId, usize>,
    /// By local copy that was stored back and whose original nothing has read since: the launch that wrote it, and
    /// the original.
    pending_stores: HashMap<ValueId, (usize, ValueId)>,
    /// Dead stores: a later store overwrites the original before anything reads it. The launch, and the local copy.
    dead_stores: Vec<(usize, ValueId)>,
    /// By cast of a remote value: its layer and pass, and the launch on the original operands.
    casts: HashMap<ValueId, (LayerPass, Instruction)>,
}

impl LocalCopies<'_> {
    fn instruction(&mut self, number: usize, mut instruction: Instruction) -> Transferred {
        let (mut fetches, mut stores, mut casts) = (Vec::new(), Vec::new(), Vec::new());
        let (scope, phase, device) = (instruction.scope, instruction.phase, instruction.device);
        // An update in the backward pass shares the local copies of its layer's backward.
        let pass = if phase == Phase::Update { Phase::Backward } else { phase };
        let layer_pass = instruction.slice.is_none().then(|| (self.program.scope(scope).layer, pass));
        let written: Vec<ValueId> =
            instruction.action.writes().iter().map(|&id| self.program.storage(id)).collect();
        self.keep_stores_read_by(&instruction);
        let cast = instruction.action.is_cast().then(|| instruction.clone());
        if let Action::Launch { op, inputs, outputs, .. } = &mut instruction.action {
            if self.layer_pass != Some(layer_pass) {
                self.copies.clear();
                self.layer_pass = Some(layer_pass);
                self.pending_stores.clear();
            }
            for input in inputs.iter_mut() {
                *input = self.input(*input, (scope, phase, device), &mut fetches, &mut casts);
            }
            for (index, output) in outputs.iter_mut().enumerate() {
                let original = *output;
                if let Some(&host) = self.offloaded.get(&original) {
                    stores.push(copy(original, host, scope, phase));
                }
                if self.program.value(original).pool.home() == device {
                    continue;
                }
                let updated = op.updates().iter().find(|(updating, _)| *updating == index);
                *output = match updated {
                    Some(&(_, input)) => {
                        let pending_store = self.pending_stores.remove(&inputs[input]);
                        self.dead_stores.extend(pending_store.map(|(launch, _)| (launch, inputs[input])));
                        self.program.add_version(inputs[input])
                    }
                    None => self.add_local((device, phase), original),
                };
                self.register(device, original, *output);
                self.pending_stores.insert(*output, (number, original));
                stores.push(copy(*output, original, scope, phase));
            }
        }
        let is_remote = |of: &ValueId| {
            self.program.value(*of).pool.home() != device || self.program.gathered_with(*of).is_some()
        };
        if let Some(cast) = cast.filter(|cast| cast.action.reads().iter().any(is_remote)) {
            let outputs = cast.action.writes().iter();
            self.casts.extend(outputs.map(|&output| (output, (layer_pass, cast.clone()))));
        }
        // Stored values are available after this instruction, as are the values that it writes locally.
        self.written.extend(written.into_iter().map(|storage| (storage, number + 1)));
        Transferred { layer_pass, fetches, casts, instruction, stores }
    }

    /// Once an instruction reads an original, the store to it is no candidate for a dead store.
    fn keep_stores_read_by(&mut self, instruction: &Instruction) {
        if self.pending_stores.is_empty() {
            return;
        }
        let program = &*self.program;
        let is_launch = matches!(instruction.action, Action::Launch { .. });
        let reads: Vec<ValueId> =
            instruction.action.reads().iter().map(|&read| program.storage(read)).collect();
        self.pending_stores.retain(|_, (_, original)| {
            let is_local = !is_launch || program.value(*original).pool.home() == instruction.device;
            !(is_local && reads.contains(&program.storage(*original)))
        });
    }

    /// The local version of an operand.
    fn input(
        &mut self,
        original: ValueId,
        (scope, phase, device): (ScopeId, Phase, Pool),
        fetches: &mut Vec<(usize, Instruction)>,
        casts: &mut Vec<Instruction>,
    ) -> ValueId {
        if let Some(&local) = self.copies.get(&(device, original)) {
            return local;
        }
        if let Some(launch) = self.cast_in_other_layer(original) {
            return self.repeat_cast(original, launch, (scope, phase, device), fetches, casts);
        }
        let parameter = self.cast_before.get(&original).copied().unwrap_or(original);
        if let Some(bucket) = self.program.gathered_with(parameter) {
            let local = self.gathered(bucket, (scope, phase, device), fetches);
            let View { range, .. } = self.program.value(parameter).view.expect("parameters lie in buckets");
            let view = self.program.add_view_like(parameter, range, local);
            self.register(device, original, view);
            return view;
        }
        let from = match self.offloaded.get(&original) {
            Some(&host) if phase == Phase::Backward => host,
            _ => original,
        };
        if self.program.value(from).pool.home() == device {
            return from;
        }
        let local = self.add_local((device, phase), original);
        let written = self.written.get(&self.program.storage(original)).copied().unwrap_or(0);
        fetches.push((written, copy(from, local, scope, phase)));
        local
    }

    /// The gathered parameters of a bucket.
    fn gathered(
        &mut self,
        bucket: usize,
        (scope, phase, device): (ScopeId, Phase, Pool),
        fetches: &mut Vec<(usize, Instruction)>,
    ) -> ValueId {
        self.gathered.enter(self.program.scope(scope).layer);
        let kept = match self.annotations.keeps_gathered {
            true => usize::MAX,
            false => self.annotations.gather_ahead,
        };
        let whole = self.program.buckets[bucket].whole;
        if let Some(local) = self.gathered.copy_of(whole, kept) {
            return local;
        }
        let pool = self.annotations.operand_pool(device, phase);
        let (local, gather) = gathers::gather(self.program, bucket, pool);
        self.gathered.add(whole, local);
        self.program.originals.insert(local, whole);
        fetches.extend(gather.into_iter().map(|action| (0, Instruction::new(action, scope, phase))));
        local
    }

    /// The launch that cast a remote value for another layer or pass. Such a cast is repeated: a kept cast would live
    /// longer than the local copy of the parameter that it came from.
    fn cast_in_other_layer(&self, cast: ValueId) -> Option<Instruction> {
        let (layer_pass, launch) = self.casts.get(&cast)?;
        (Some(*layer_pass) != self.layer_pass).then(|| launch.clone())
    }

    fn repeat_cast(
        &mut self,
        cast: ValueId,
        launch: Instruction,
        (scope, phase, device): (ScopeId, Phase, Pool),
        fetches: &mut Vec<(usize, Instruction)>,
        casts: &mut Vec<Instruction>,
    ) -> ValueId {
        let Action::Launch { op, inputs, outputs, .. } = launch.action else {
            unreachable!("a cast is a launch")
        };
        let position = outputs.iter().position(|output| *output == cast).expect("the launch writes the cast");
        let input = self.input(inputs[position], (scope, phase, device), fetches, casts);
        let local = self.add_local((device, phase), cast);
        let action = Action::Launch { op, inputs: vec![input], outputs: vec![local], workspace: None };
        casts.push(Instruction { recompute: true, device, ..Instruction::new(action, scope, phase) });
        local
    }

    fn add_local(&mut self, (device, phase): (Pool, Phase), original: ValueId) -> ValueId {
        let value = self.program.value(original).clone();
        let pool = self.annotations.operand_pool(device, phase);
        let local = self.program.add_like(Value { pool, ..value });
        self.register(device, original, local);
        local
    }

    fn register(&mut self, device: Pool, original: ValueId, local: ValueId) {
        self.copies.insert((device, original), local);
        self.program.originals.insert(local, original);
    }
}

fn copy(from: ValueId, to: ValueId, scope: ScopeId, phase: Phase) -> Instruction {
    Instruction::new(Action::Copy { queue: Queue::Copy, from, to }, scope, phase)
}
