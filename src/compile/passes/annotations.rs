//! Annotations derived from the strategy, before any pass carries them out.

use super::Draft;
use crate::ir::{Action, Bucket, Instruction, Program};
use crate::recompute_plan::RecomputePlan;
use device::{Phase, Pool, Role};
use graph::ScopeId;
use ops::ValueId;
use spec::{ActivationOffload, Init, Offload, Parallel};

#[derive(Debug)]
pub struct Annotations {
    /// The recompute plan.
    pub recompute: RecomputePlan,
    /// By scope: the device that computes it; `Device` if there is no entry.
    pub devices: Vec<Pool>,
    /// The device that measures, clips and applies gradients.
    pub update_device: Pool,
    /// The pool of the optimizer states.
    pub states: Pool,
    pub parameters: Pool,
    /// Parameter buckets that are in host memory because their layer is placed on the host.
    host_placed: Vec<ValueId>,
    pub gradients: Pool,
    /// The host pool for offloaded values and for operands of host launches.
    pub host: Pool,
    /// The pool in which parameters are initialised (pageable host memory, as in PyTorch); `None`: their own pool.
    pub init_pool: Option<Pool>,
    /// Offload activations of at least this many bytes between forward and backward; `None`: keep all.
    pub min_offload_bytes: Option<u64>,
    /// The prefetch distance in layers; 0: right before the use.
    pub ahead: usize,
    /// As `ahead`, of gathers.
    pub gather_ahead: usize,
    /// Whether gathered parameters stay until the section ends.
    pub keeps_gathered: bool,
}

impl Default for Annotations {
    fn default() -> Annotations {
        Annotations {
            recompute: RecomputePlan::default(),
            devices: Vec::new(),
            update_device: Pool::Device,
            states: Pool::Device,
            parameters: Pool::Device,
            host_placed: Vec::new(),
            gradients: Pool::Device,
            host: Pool::Pinned,
            init_pool: None,
            min_offload_bytes: None,
            ahead: 1,
            gather_ahead: 1,
            keeps_gathered: false,
        }
    }
}

pub(super) fn annotate(draft: &mut Draft) {
    draft.annotations.recompute = draft.recompute_plan.clone();
    draft.annotations.init_pool = match draft.config.strategy.init {
        Init::Device | Init::Lazy => None,
        Init::Host => Some(Pool::Host),
    };
    if let Some(pool) = draft.annotations.init_pool {
        set_init_pool(&mut draft.program, pool);
    }
    offload(&mut draft.annotations, draft.config.strategy.offload);
    let Parallel { keep_gathered, ahead, .. } = draft.config.strategy.parallel;
    (draft.annotations.keeps_gathered, draft.annotations.gather_ahead) = (keep_gathered, ahead);
    (draft.change_annotations)(&mut draft.annotations, &draft.program.scopes);
    let buckets = draft.program.buckets.iter().map(|bucket| bucket.parameters);
    draft.annotations.host_placed =
        buckets.filter(|&id| draft.program.value(id).pool.home() == Pool::Host).collect();
    move_parameters(&mut draft.program, draft.annotations.parameters);
}

fn offload(annotations: &mut Annotations, offload: Offload) {
    let Offload { parameters, optimizer, activations, pinned, ahead } = offload;
    annotations.host = if pinned { Pool::Pinned } else { Pool::Host };
    if parameters {
        annotations.parameters = annotations.host;
    }
    if optimizer {
        (annotations.states, annotations.gradients, annotations.update_device) =
            (annotations.host, annotations.host, Pool::Host);
    }
    if let ActivationOffload::From(least) = activations {
        annotations.min_offload_bytes = Some(least.0);
    }
    annotations.ahead = ahead;
}

/// Moves the initial values of quantized parameters, before quantization, to `pool`.
fn set_init_pool(program: &mut Program, pool: Pool) {
    let initial_values: Vec<ValueId> = program.originals.keys().copied().collect();
    for id in initial_values {
        program.values[id.index()].pool = pool;
    }
}

/// Moves parameters and their scales; those of layers that are placed on the host stay there, as do buffers, which the
/// forward pass updates.
fn move_parameters(program: &mut Program, pool: Pool) {
    let is_buffer = |bucket: &Bucket| program.value(bucket.parameters).role == Role::Buffer;
    let parameters = program.buckets.iter().filter(|bucket| !is_buffer(bucket));
    let buckets: Vec<ValueId> = parameters.flat_map(Bucket::parameter_storages).collect();
    let moved = program.mask(&buckets);
    // Initial values before quantization move along with their parameter.
    let is_moved = |id: ValueId| {
        let on_device = program.value(id).pool == Pool::Device;
        on_device && moved[program.storage(program.original(id)).index()]
    };
    let moves: Vec<bool> = (0..).map(ValueId).take(program.values.len()).map(is_moved).collect();
    for (value, _) in program.values.iter_mut().zip(moves).filter(|(_, moves)| *moves) {
        value.pool = pool;
    }
}

/// Whether the instruction writes a parameter's initial value.
fn initialises_parameter(program: &Program, instruction: &Instruction, outputs: &[ValueId]) -> bool {
    instruction.phase == Phase::Start && program.value(outputs[0]).role == Role::Parameter
}

impl Annotations {
    /// The pool of a bucket's gradients or states: the host's if its layer is placed there, otherwise `otherwise`.
    pub(crate) fn bucket_pool(&self, parameters: ValueId, otherwise: Pool) -> Pool {
        if self.host_placed.contains(&parameters) { Pool::Host.workplace() } else { otherwise }
    }

    /// The device that computes a scope.
    pub(crate) fn device_of(&self, scope: ScopeId) -> Pool {
        self.devices.get(scope.index()).copied().unwrap_or(Pool::Device)
    }

    /// The pool for local copies of remote operands, and for workspaces, of launches on a device.
    pub(crate) fn operand_pool(&self, device: Pool, phase: Phase) -> Pool {
        let is_offloaded = device == Pool::Host && phase == Phase::Update && self.update_device == Pool::Host;
        match self.init_pool {
            Some(pool) if device == Pool::Host && phase == Phase::Start => pool,
            _ if is_offloaded => self.host,
            _ => device.workplace(),
        }
    }

    /// The device that computes an instruction.
    pub(crate) fn device_for(&self, program: &Program, instruction: &Instruction) -> Pool {
        let device = |id: ValueId| program.value(id).pool.home();
        match &instruction.action {
            Action::Launch { op, outputs, .. } if op.as_update().is_some() => {
                self.bucket_pool(program.storage(outputs[0]), self.update_device).home()
            }
            // Files are read into the host's memory.
            Action::Launch { op, .. } if op.stored_site().is_some() => Pool::Host,
            Action::Launch { outputs, .. } if initialises_parameter(program, instruction, outputs) => {
                self.init_pool.map_or_else(|| device(outputs[0]), Pool::home)
            }
            // Initial values and launches without inputs run on the device of their output.
            Action::Launch { inputs, outputs, .. }
                if inputs.is_empty() || instruction.phase == Phase::Start =>
            {
                device(outputs[0])
            }
            Action::Launch { .. } if instruction.phase == Phase::Update => self.update_device,
            Action::Launch { .. } => self.device_of(instruction.scope),
            _ => Pool::Device,
        }
    }
}
