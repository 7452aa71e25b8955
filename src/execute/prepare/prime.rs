//! Runs every operation of a program once before anything is measured, so that the process's own memory (code, stacks,
//! thread-local tables) is resident and not counted as the run's.

use compile::Program;
use device::{Buffer, Device, DeviceError, Placed, Pool, Queue, Region, Tensor, Work};
use memory::{RunSchedule, predict};
use ops::{Fill, Op, TensorType};

/// Bytes of a copy between pools.
const COPY_BYTES: u64 = 1 << 12;

/// Launches each operation on temporary operands with the program's sizes and alignments, since kernels differ by both.
///
/// # Errors
/// A device that fails. Operations that run out of memory are skipped: the run itself will report it.
pub fn prime(
    device: &mut dyn Device,
    program: &Program,
    run_schedule: RunSchedule,
) -> Result<(), DeviceError> {
    // If the run fits, the operands of each operation do, too. Otherwise one operation may be too large for the
    // machine, whose memory holds more than the device pool.
    let fits = predict(program, device.target(), run_schedule).out_of_memory.is_none();
    let room = if fits { u64::MAX } else { device.target().available() / 2 };
    let work = program.work().into_iter().map(|work| (sizes(&work), work));
    for (sizes, work) in work.filter(|(sizes, _)| sizes.iter().sum::<u64>() <= room) {
        with_buffers(device, work.home, &sizes, |device, buffers| launch(device, &work, buffers))?;
    }
    with_buffers(device, Pool::Device, &[COPY_BYTES], |device, buffers| copy_both_ways(device, buffers[0]))?;
    device.synchronize()
}

/// Bytes of an operation's buffers: inputs, outputs, workspace. 0 for outputs that are computed in place of an input.
fn sizes(work: &Work) -> Vec<u64> {
    let outputs = work.outputs.iter().enumerate();
    let outputs = outputs.map(|(index, placed)| if work.place(index).is_some() { 0 } else { placed.end() });
    work.inputs.iter().map(Placed::end).chain(outputs).chain([work.workspace]).collect()
}

/// Launches an operation on zeros, which are valid token and class ids of every model.
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
    let workspace = buffers.last().filter(|_| work.workspace > 0);
    let workspace = workspace.map(|&buffer| Region { buffer, offset: 0, bytes: work.workspace });
    device.launch(&work.op, &inputs, &outputs, workspace)
}

/// Copies from the device to the host and back, on each queue.
fn copy_both_ways(device: &mut dyn Device, buffer: Buffer) -> Result<(), DeviceError> {
    let host = device.allocate(Pool::Pinned, COPY_BYTES)?;
    let [on_device, on_host] = [buffer, host].map(|buffer| Region { buffer, offset: 0, bytes: COPY_BYTES });
    for queue in Queue::OF_DEVICE {
        device.copy(queue, on_device, on_host)?;
        device.copy(queue, on_host, on_device)?;
        device.synchronize()?;
    }
    device.free(host)
}

/// Calls `work` with temporary buffers of a pool. They are freed even if it fails.
fn with_buffers(
    device: &mut dyn Device,
    pool: Pool,
    sizes: &[u64],
    work: impl FnOnce(&mut dyn Device, &[Buffer]) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let page = device.target().page.0;
    let mut buffers = Vec::with_capacity(sizes.len());
    let mut allocated = Ok(());
    for bytes in sizes {
        match device.allocate(pool, (*bytes).max(1).next_multiple_of(page)) {
            Ok(buffer) => buffers.push(buffer),
            Err(error) => {
                allocated = Err(error);
                break;
            }
        }
    }
    let done = allocated.and_then(|()| work(device, &buffers));
    let freed = buffers.into_iter().try_for_each(|buffer| device.free(buffer));
    match done {
        // Only of an allocation: a launch that is out of memory has no bytes.
        Err(DeviceError::OutOfMemory { bytes: 1.., .. }) => freed,
        done => done.and(freed),
    }
}
