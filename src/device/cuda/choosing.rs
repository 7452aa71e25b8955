//! Chooses how products are computed: as a repeated run stored it, else as the cache has it, else by time.
//!
//! What an operation multiplies is known only to the code that enqueues it. So that code is run: once to note its
//! products, and, for those that have no choice yet, once more on scratch memory, where it stops at each to time the
//! candidates.

mod scratch;
mod timing;

use sha2::{Digest, Sha256};

use self::scratch::Scratch;
use super::launcher::{Launcher, Operand};
use super::launches;
use super::probe::Equipment;
use super::products::{Shape, Way};
use super::{CudaDevice, Queue};
use crate::{Choice, Device, DeviceError, Placed, Source, Work};

pub(super) use self::timing::Chooser;

/// What a launcher does.
pub(super) enum Mode<'a> {
    Enqueue,
    /// Notes the shapes of products, and enqueues nothing.
    Note(&'a mut Vec<Shape>),
    /// Times the candidates of products that have no choice yet. Operands may be overwritten again and again.
    Choose(Chooser<'a>),
}

/// What a choice depends on besides the product.
pub(super) struct Setting {
    /// The card and the versions that an algorithm of the library's holds for.
    text: String,
    /// Of this program's own kernels, which the library's were timed against.
    kernels: Vec<u8>,
}

impl Setting {
    pub(super) fn new(equipment: &Equipment, cubins: &[Vec<u8>]) -> Setting {
        let Equipment { card, driver, cublaslt, .. } = equipment;
        let (name, capability) = (&card.name, card.capability);
        let text = format!("{name}, compute capability {capability}, cuBLASLt {cublaslt}, driver {driver}");
        let mut kernels = Sha256::new();
        cubins.iter().for_each(|cubin| kernels.update(Sha256::digest(cubin)));
        Setting { text, kernels: kernels.finalize().to_vec() }
    }

    /// Names a product's choice in the cache.
    fn key(&self, shape: &Shape) -> String {
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

/// Chooses for all products of what will be launched.
///
/// # Errors
/// As `Device::choose`.
pub(super) fn choose(device: &mut CudaDevice, work: &[Work], stored: &[Choice]) -> Result<(), DeviceError> {
    let mut scratch_was_used = false;
    for work in work {
        let mut open = Vec::new();
        for shape in noted(device, work)? {
            let known = device.products.choice(&shape).is_some()
                || takes_stored(device, shape, stored)?
                || takes_cached(device, shape)?;
            if !known {
                open.push(shape);
            }
        }
        if !open.is_empty() {
            scratch_was_used = true;
            match Scratch::take(device, work)? {
                Some(scratch) => time(device, work, &open, scratch)?,
                None => take_recommended(device, &open)?,
            }
        }
    }
    if scratch_was_used {
        // What the run itself asks for must not find the card taken.
        device.synchronize()?;
        device.memory.trim()?;
    }
    Ok(())
}

/// The products that an operation may enqueue.
fn noted(device: &mut CudaDevice, work: &Work) -> Result<Vec<Shape>, DeviceError> {
    // Nothing reads or writes there.
    let operand = |&Placed { ty, offset }: &Placed| Operand { address: offset, ty };
    let operands = |placed: &[Placed]| placed.iter().map(operand).collect::<Vec<_>>();
    let (inputs, outputs) = (operands(&work.inputs), operands(&work.outputs));
    let mut shapes = Vec::new();
    let stream = device.queues.stream(Queue::Compute);
    let mut launcher =
        Launcher::new(stream, &mut device.modules, &mut device.products).in_mode(Mode::Note(&mut shapes));
    launches::run(&work.op, &inputs, &outputs, (0, work.workspace), &mut launcher)?;
    Ok(shapes)
}

fn takes_stored(device: &mut CudaDevice, shape: Shape, stored: &[Choice]) -> Result<bool, DeviceError> {
    let Some(choice) = stored.iter().find(|choice| shape.is_of(choice)) else { return Ok(false) };
    let product = shape.to_string();
    let here = &device.setting.text;
    if choice.setting != *here {
        let problem = format!("is of {}, this is {here}", choice.setting);
        return Err(DeviceError::StoredChoice { product, problem });
    }
    if !device.products.adopt(shape, choice, Source::LoadParameter)? {
        let problem = "is not taken by the library".to_owned();
        return Err(DeviceError::StoredChoice { product, problem });
    }
    if device.cache.get(&device.setting.key(&shape)).is_none() {
        keep(device, shape);
    }
    Ok(true)
}

/// Puts what was chosen for a shape into the cache.
fn keep(device: &CudaDevice, shape: Shape) {
    if let Some(Ok(bytes)) = device.products.choice(&shape).map(serde_json::to_vec) {
        device.cache.put(&device.setting.key(&shape), &bytes);
    }
}

/// An entry that cannot be read or is not taken is as good as none: it will be replaced.
fn takes_cached(device: &mut CudaDevice, shape: Shape) -> Result<bool, DeviceError> {
    let Some(bytes) = device.cache.get(&device.setting.key(&shape)) else { return Ok(false) };
    match serde_json::from_slice::<Choice>(&bytes) {
        Ok(choice) => device.products.adopt(shape, &choice, Source::Cache),
        Err(_) => Ok(false),
    }
}

/// Times the candidates of an operation's products.
fn time(device: &mut CudaDevice, work: &Work, open: &[Shape], scratch: Scratch) -> Result<(), DeviceError> {
    let timed = on_scratch(device, work, &scratch);
    let freed = scratch.free(device);
    timed.and(freed)?;
    for &shape in open {
        // Another process may have been the first to choose: runs that promise the same bits follow one choice.
        if !takes_cached(device, shape)? {
            keep(device, shape);
        }
    }
    Ok(())
}

fn on_scratch(device: &mut CudaDevice, work: &Work, scratch: &Scratch) -> Result<(), DeviceError> {
    scratch.fill(device)?;
    let (inputs, outputs) = (device.operands(&scratch.inputs)?, device.operands(&scratch.outputs)?);
    let workspace = (device.memory.find(scratch.workspace)?.0, work.workspace);
    let stream = device.queues.stream(Queue::Compute);
    let chooser = Chooser { clock: &mut device.clock, setting: &device.setting.text };
    let mut launcher =
        Launcher::new(stream, &mut device.modules, &mut device.products).in_mode(Mode::Choose(chooser));
    launches::run(&work.op, &inputs, &outputs, workspace, &mut launcher)
}

fn take_recommended(device: &mut CudaDevice, open: &[Shape]) -> Result<(), DeviceError> {
    for &shape in open {
        if let Some(&first) = device.products.recommended(shape)?.first() {
            let said = [device.setting.text.clone(), String::new()];
            device.products.choose(shape, Way::Fused(first), said, Source::Untimed)?;
        }
    }
    Ok(())
}
