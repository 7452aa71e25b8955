//! Runs every operation of a program once before anything is measured, so that what the process needs for itself (code,
//! stacks, thread-local tables) is resident and not taken for the run's memory.

use compile::Program;
use device::{Buffer, Device, DeviceError, Placed, Pool, Queue, Region, Tensor, Work};
use memory::{RunSchedule, predict};
use ops::{Fill, Op, TensorType};

/// Bytes of a copy between pools.
const COPIED: u64 = 1 << 12;

/// Launches each operation on operands of its own, as large and as aligned as the program's: what a kernel does differs by
/// both. The memory is given back.
///
/// # Errors
/// A device that fails. Where there is no memory for an operation it is let be: the run itself will say so.
pub fn prime(
    device: &mut dyn Device,
    program: &Program,
    run_schedule: RunSchedule,
) -> Result<(), DeviceError> {
    // What a run that fits has in memory at once, this has, too. Of one that does not, an operation may be too large for
    // the machine, which has more to hold than the device pool.
    let fits = predict(program, device.target(), run_schedule).out_of_memory.is_none();
    let room = if fits { u64::MAX } else { device.target().available() / 2 };
    let work = program.work().into_iter().map(|work| (sizes(&work), work));
    for (sizes, work) in work.filter(|(sizes, _)| sizes.iter().sum::<u64>() <= room) {
        on_memory(device, work.home, &sizes, |device, buffers| launch(device, &work, buffers))?;
    }
    on_memory(device, Pool::Device, &[COPIED], |device, buffers| copy(device, buffers[0]))?;
    device.synchronize()
}

/// Bytes of the buffers that an operation works on: its inputs, its outputs, its scratch memory. An output that may take
/// an input's place does so, and needs none.
fn sizes(work: &Work) -> Vec<u64> {
    let outputs = work.outputs.iter().enumerate();
    let outputs = outputs.map(|(index, placed)| if work.place(index).is_some() { 0 } else { placed.end() });
    work.inputs.iter().map(Placed::end).chain(outputs).chain([work.workspace]).collect()
}

/// Once, on zeros: they are tokens of every vocabulary and classes of every model.
fn launch(device: &mut dyn Device, work: &Work, buffers: &[Buffer]) -> Result<(), DeviceError> {
    let tensor =
        |index: usize, &Placed { ty, offset }: &Placed| Tensor { buffer: buffers[index], offset, ty };
    let inputs = work.inputs.iter().enumerate();
    let inputs: Vec<Tensor> = inputs.map(|(index, placed)| tensor(index, placed)).collect();
    let outputs = work.outputs.iter().enumerate();
    let outputs = outputs.map(|(index, placed)| match work.place(index) {
        Some(input) => inputs[input],
        None => tensor(inputs.len() + index, placed),
    });
    let outputs: Vec<Tensor> = outputs.collect();
    for input in &inputs {
        // The bits of a zero are the same in every type.
        let words = TensorType::f32(&[(input.offset + input.ty.bytes()).div_ceil(4) as usize]);
        let zeros = Tensor { ty: words, offset: 0, ..*input };
        device.launch(&Op::Fill(Fill { output: words, value: 0.0 }), &[], &[zeros], None)?;
    }
    let scratch = buffers.last().filter(|_| work.workspace > 0);
    let scratch = scratch.map(|&buffer| Region { buffer, offset: 0, bytes: work.workspace });
    device.launch(&work.op, &inputs, &outputs, scratch)
}

/// From the device to the host and back, on either queue.
fn copy(device: &mut dyn Device, buffer: Buffer) -> Result<(), DeviceError> {
    let host = device.allocate(Pool::Pinned, COPIED)?;
    let [here, there] = [buffer, host].map(|buffer| Region { buffer, offset: 0, bytes: COPIED });
    for queue in Queue::OF_DEVICE {
        device.copy(queue, here, there)?;
        device.copy(queue, there, here)?;
        device.synchronize()?;
    }
    device.free(host)
}

/// Works on buffers of a pool, and gives them back whatever came of it.
fn on_memory(
    device: &mut dyn Device,
    pool: Pool,
    sizes: &[u64],
    work: impl FnOnce(&mut dyn Device, &[Buffer]) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let page = device.target().page.0;
    let mut buffers = Vec::with_capacity(sizes.len());
    let mut taken = Ok(());
    for bytes in sizes {
        match device.allocate(pool, (*bytes).max(1).next_multiple_of(page)) {
            Ok(buffer) => buffers.push(buffer),
            Err(error) => {
                taken = Err(error);
                break;
            }
        }
    }
    let done = taken.and_then(|()| work(device, &buffers));
    let freed = buffers.into_iter().try_for_each(|buffer| device.free(buffer));
    match done {
        Err(DeviceError::OutOfMemory { .. }) => freed,
        done => done.and(freed),
    }
}
