//! Scratch operands for timing the matmuls of an operation.

use crate::cuda::CudaDevice;
use crate::{Buffer, Device, DeviceError, Placed, Pool, Queue, Region, Tensor, Work};
use ops::{Cast, DType, Deviation, Normal, Op, TensorType};

/// Number of random numbers; operands are filled with repeated copies of them.
const NUMBERS: usize = 1 << 20;

/// Operands with the program's alignments. An output that must or may overwrite an input does.
pub(super) struct Scratch {
    buffers: Vec<Buffer>,
    pub(super) inputs: Vec<Tensor>,
    pub(super) outputs: Vec<Tensor>,
    pub(super) workspace: Region,
    /// Random numbers in f32, and converted to another type.
    numbers: [Region; 2],
}

impl Scratch {
    /// `None` if it does not fit in the target's memory or on the card.
    ///
    /// # Errors
    /// The device fails otherwise.
    pub(super) fn allocate(device: &mut CudaDevice, work: &Work) -> Result<Option<Scratch>, DeviceError> {
        let own_outputs = (0..work.outputs.len()).filter(|&output| work.place(output).is_none());
        let largest = work.inputs.iter().map(|input| input.ty.elements()).max().unwrap_or(0);
        let numbers = TensorType::f32(&[largest.clamp(1, NUMBERS)]).bytes();
        let mut sizes: Vec<u64> = work.inputs.iter().map(Placed::end).collect();
        sizes.extend(own_outputs.map(|output| work.outputs[output].end()));
        sizes.extend([work.workspace, numbers, numbers]);
        let Some(buffers) = allocate_all(device, &sizes)? else { return Ok(None) };

        let mut regions = buffers.iter().zip(&sizes).map(|(&buffer, &bytes)| region(buffer, bytes));
        let mut next = || regions.next().expect("one region per allocation");
        let tensor =
            |&Placed { ty, offset }: &Placed, region: Region| Tensor { buffer: region.buffer, offset, ty };
        let inputs: Vec<Tensor> = work.inputs.iter().map(|placed| tensor(placed, next())).collect();
        let outputs = work.outputs.iter().enumerate().map(|(output, placed)| match work.place(output) {
            Some(input) => inputs[input],
            None => tensor(placed, next()),
        });
        let outputs = outputs.collect();
        let (workspace, numbers) = (next(), [next(), next()]);
        Ok(Some(Scratch { buffers, inputs, outputs, workspace, numbers }))
    }

    /// Fills the operands with random numbers as in training: with constant operands a card draws less power and clocks
    /// higher.
    ///
    /// # Errors
    /// The device fails.
    pub(super) fn fill(&self, device: &mut CudaDevice) -> Result<(), DeviceError> {
        let [drawn, cast] = self.numbers;
        let tensor = |region: Region, dtype: DType| {
            let count = (drawn.bytes / DType::F32.bytes()) as usize;
            Tensor { buffer: region.buffer, offset: 0, ty: TensorType::new(dtype, &[count]) }
        };
        let numbers = tensor(drawn, DType::F32);
        let normal =
            Op::Normal(Normal { output: numbers.ty, deviation: Deviation::Fixed(1.0), seed: 0, site: 0 });
        device.launch(&normal, &[], &[numbers], None)?;
        for input in &self.inputs {
            let to = input.ty.dtype;
            let source = tensor(cast, to);
            device.launch(&Op::Cast(Cast { to }), &[numbers], &[source], None)?;
            let whole = input.region();
            for offset in (0..whole.bytes).step_by(source.ty.bytes() as usize) {
                let bytes = source.ty.bytes().min(whole.bytes - offset);
                let piece = Region { offset: whole.offset + offset, bytes, ..whole };
                device.copy(Queue::Compute, region(source.buffer, bytes), piece)?;
            }
        }
        Ok(())
    }

    pub(super) fn free(self, device: &mut CudaDevice) -> Result<(), DeviceError> {
        free_all(device, self.buffers)
    }
}

fn region(buffer: Buffer, bytes: u64) -> Region {
    Region { buffer, offset: 0, bytes }
}

/// `None` if they do not all fit.
fn allocate_all(device: &mut CudaDevice, sizes: &[u64]) -> Result<Option<Vec<Buffer>>, DeviceError> {
    let page = device.target.page.0;
    let total = sizes.iter().map(|bytes| bytes.next_multiple_of(page)).sum::<u64>();
    if total > device.target.available() {
        return Ok(None);
    }
    let mut buffers = Vec::with_capacity(sizes.len());
    for &bytes in sizes {
        match device.allocate(Pool::Device, bytes) {
            Ok(buffer) => buffers.push(buffer),
            Err(error) => {
                free_all(device, buffers)?;
                let is_full = matches!(error, DeviceError::OutOfMemory { .. });
                return if is_full { Ok(None) } else { Err(error) };
            }
        }
    }
    Ok(Some(buffers))
}

fn free_all(device: &mut CudaDevice, buffers: Vec<Buffer>) -> Result<(), DeviceError> {
    buffers.into_iter().try_for_each(|buffer| device.free(buffer))
}
