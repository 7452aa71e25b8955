//! Autotuning of matmuls: the choice stored with a repeated run, else the cached one, else the fastest measured
//! candidate.
//!
//! Only the launch code of an operation determines its matmuls. So that code runs once to collect their shapes, and
//! again on scratch memory if a shape has no choice yet, to time its candidates.

mod scratch;
mod timing;

use sha2::{Digest, Sha256};

use self::scratch::Scratch;
use super::launcher::{Launcher, Operand};
use super::launches;
use super::matmul::{MatmulMethod, MatmulShape};
use super::probe::CudaStack;
use super::{CudaDevice, Queue};
use crate::{Choice, Device, DeviceError, Placed, Source, Work};

pub(super) use self::timing::Tuner;

/// The mode of a launcher.
pub(super) enum Mode<'a> {
    Enqueue,
    /// Collects the shapes of matmuls, and enqueues nothing.
    Collect(&'a mut Vec<MatmulShape>),
    /// Times the candidates of matmuls that have no choice yet. Operands may be overwritten repeatedly.
    Tune(Tuner<'a>),
}

/// The dependencies of a choice besides the shape.
pub(super) struct Environment {
    /// The card and the versions for which an algorithm is valid.
    text: String,
    /// Digest of this program's kernels, which were timed against the library's epilogues.
    kernels: Vec<u8>,
}

impl Environment {
    pub(super) fn new(equipment: &CudaStack, cubins: &[Vec<u8>]) -> Environment {
        let CudaStack { card, driver, cublaslt, .. } = equipment;
        let (name, capability) = (&card.name, card.capability);
        let text = format!("{name}, compute capability {capability}, cuBLASLt {cublaslt}, driver {driver}");
        let mut kernels = Sha256::new();
        cubins.iter().for_each(|cubin| kernels.update(Sha256::digest(cubin)));
        Environment { text, kernels: kernels.finalize().to_vec() }
    }

    /// The cache key of a shape's choice.
    fn key(&self, shape: &MatmulShape) -> String {
        let digest = Sha256::new()
            .chain_update(&self.kernels)
            .chain_update(Sha256::digest(&self.text))
            .chain_update(shape.to_string())
            .chain_update(shape.alignment.to_string())
            .finalize();
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("product-{digest}")
    }
}

/// Selects methods for all matmuls of the future launches.
///
/// # Errors
/// As `Device::choose`.
pub(super) fn select(device: &mut CudaDevice, work: &[Work], stored: &[Choice]) -> Result<(), DeviceError> {
    let mut scratch_was_used = false;
    for work in work {
        let mut undecided = Vec::new();
        for shape in collect_shapes(device, work)? {
            let known = device.matmuls.choice(&shape).is_some()
                || adopt_stored(device, shape, stored)?
                || adopt_cached(device, shape)?;
            if !known {
                undecided.push(shape);
            }
        }
        if !undecided.is_empty() {
            scratch_was_used = true;
            match Scratch::allocate(device, work)? {
                Some(scratch) => tune(device, work, &undecided, scratch)?,
                None => select_recommended(device, &undecided)?,
            }
        }
    }
    if scratch_was_used {
        // Returns the scratch memory to the card for the run's own requests.
        device.synchronize()?;
        device.memory.trim()?;
    }
    Ok(())
}

/// The shapes of the matmuls that an operation may enqueue.
fn collect_shapes(device: &mut CudaDevice, work: &Work) -> Result<Vec<MatmulShape>, DeviceError> {
    // Placeholder addresses: nothing is read or written.
    let operand = |&Placed { ty, offset }: &Placed| Operand { address: offset, ty };
    let operands = |placed: &[Placed]| placed.iter().map(operand).collect::<Vec<_>>();
    let (inputs, outputs) = (operands(&work.inputs), operands(&work.outputs));
    let mut shapes = Vec::new();
    let stream = device.queues.stream(Queue::Compute);
    let mut launcher =
        Launcher::new(stream, &mut device.modules, &mut device.matmuls).in_mode(Mode::Collect(&mut shapes));
    launches::run(&work.op, &inputs, &outputs, (0, work.workspace), &mut launcher)?;
    Ok(shapes)
}

fn adopt_stored(device: &mut CudaDevice, shape: MatmulShape, stored: &[Choice]) -> Result<bool, DeviceError> {
    let Some(choice) = stored.iter().find(|choice| shape.matches(choice)) else { return Ok(false) };
    let product = shape.to_string();
    let current = &device.environment.text;
    if choice.setting != *current {
        let problem = format!("was chosen on {}, but this is {current}", choice.setting);
        return Err(DeviceError::StoredChoice { product, problem });
    }
    if !device.matmuls.adopt(shape, choice, Source::Stored)? {
        let problem = "was rejected by the library".to_owned();
        return Err(DeviceError::StoredChoice { product, problem });
    }
    if device.cache.get(&device.environment.key(&shape)).is_none() {
        cache_choice(device, shape);
    }
    Ok(true)
}

/// Stores a shape's choice in the cache.
fn cache_choice(device: &CudaDevice, shape: MatmulShape) {
    if let Some(Ok(bytes)) = device.matmuls.choice(&shape).map(serde_json::to_vec) {
        device.cache.put(&device.environment.key(&shape), &bytes);
    }
}

/// Unreadable and rejected entries count as missing and are replaced.
fn adopt_cached(device: &mut CudaDevice, shape: MatmulShape) -> Result<bool, DeviceError> {
    let Some(bytes) = device.cache.get(&device.environment.key(&shape)) else { return Ok(false) };
    match serde_json::from_slice::<Choice>(&bytes) {
        Ok(choice) => device.matmuls.adopt(shape, &choice, Source::Cache),
        Err(_) => Ok(false),
    }
}

/// Times the candidates of an operation's matmuls.
fn tune(
    device: &mut CudaDevice,
    work: &Work,
    undecided: &[MatmulShape],
    scratch: Scratch,
) -> Result<(), DeviceError> {
    let timed = tune_on_scratch(device, work, &scratch);
    let freed = scratch.free(device);
    timed.and(freed)?;
    for &shape in undecided {
        // Another process may have cached a choice first. Runs that promise identical bits must use the same one.
        if !adopt_cached(device, shape)? {
            cache_choice(device, shape);
        }
    }
    Ok(())
}

fn tune_on_scratch(device: &mut CudaDevice, work: &Work, scratch: &Scratch) -> Result<(), DeviceError> {
    scratch.fill(device)?;
    let (inputs, outputs) = (device.operands(&scratch.inputs)?, device.operands(&scratch.outputs)?);
    let workspace = (device.memory.find(scratch.workspace)?.0, work.workspace);
    let stream = device.queues.stream(Queue::Compute);
    let tuner = Tuner { clock: &mut device.clock, environment: &device.environment.text };
    let mut launcher =
        Launcher::new(stream, &mut device.modules, &mut device.matmuls).in_mode(Mode::Tune(tuner));
    launches::run(&work.op, &inputs, &outputs, workspace, &mut launcher)
}

fn select_recommended(device: &mut CudaDevice, undecided: &[MatmulShape]) -> Result<(), DeviceError> {
    for &shape in undecided {
        if let Some(&first) = device.matmuls.recommended(shape)?.first() {
            let setting_and_times = [device.environment.text.clone(), String::new()];
            device.matmuls.select(shape, MatmulMethod::Fused(first), setting_and_times, Source::Untimed)?;
        }
    }
    Ok(())
}
