//! Priming: launches every operation of a run, within the run's memory, and frees all of it.

use std::collections::HashMap;

use crate::prepare::prime;
use base::units::Bytes;
use device::{Buffer, Device, DeviceError, Placed, Pool, Region, Target, Tensor, Work};
use memory::{RunSchedule, predict};
use ops::Op;
use testing::compile;
use testing::forward;

/// A device that records launches and memory.
struct Recorder {
    device: Box<dyn Device>,
    launched: Vec<Work>,
    live: HashMap<Buffer, (Pool, u64)>,
    most: u64,
}

impl Recorder {
    fn new(target: Target) -> Recorder {
        Recorder { device: testing::device(target), launched: Vec::new(), live: HashMap::new(), most: 0 }
    }
}

impl Device for Recorder {
    forward!(target, copy, lend, record, wait, synchronize, poison, write, read);

    fn allocate(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
        let buffer = self.device.allocate(pool, bytes)?;
        self.live.insert(buffer, (pool, bytes));
        self.most = self.most.max(self.live.values().map(|(_, bytes)| bytes).sum());
        Ok(buffer)
    }

    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.live.remove(&buffer);
        self.device.free(buffer)
    }

    fn launch(
        &mut self,
        op: &Op,
        inputs: &[Tensor],
        outputs: &[Tensor],
        workspace: Option<Region>,
    ) -> Result<(), DeviceError> {
        let placed = |tensor: &Tensor| Placed::new(tensor.ty, tensor.offset);
        let home = outputs.first().map_or(Pool::Device, |output| self.live[&output.buffer].0);
        self.launched.push(Work {
            home,
            op: op.clone(),
            inputs: inputs.iter().map(placed).collect(),
            outputs: outputs.iter().map(placed).collect(),
            workspace: workspace.map_or(0, |region| region.bytes),
        });
        self.device.launch(op, inputs, outputs, workspace)
    }
}

#[test]
fn priming_launches_every_operation_of_a_run() {
    for choice in testing::pairwise() {
        let config = testing::small_with(&choice);
        let (program, run_schedule) =
            (compile(&config, &testing::target()).unwrap(), RunSchedule::of(&config));
        let mut device = Recorder::new(testing::target());
        prime(&mut device, &program, run_schedule).unwrap();
        for work in program.work() {
            assert!(device.launched.contains(&work), "{:?}: {work:?}", choice.settings());
        }
        assert!(device.live.is_empty(), "all is given back");
        let predicted = predict(&program, &testing::target(), run_schedule);
        // Each operand fills whole pages; those of a run share them.
        let operands = |work: Work| work.inputs.len() + work.outputs.len() + 1;
        let most = program.work().into_iter().map(operands).max().unwrap_or(0);
        let pages = most as u64 * testing::target().page.0;
        let needed = predicted.device.reserved_peak + predicted.host.reserved_peak + pages;
        assert!(device.most <= needed, "{:?}: {} bytes, the run {needed}", choice.settings(), device.most);
    }
}

#[test]
fn run_that_does_not_fit_is_primed_with_its_smaller_operations() {
    let config = testing::small();
    let (program, run_schedule) = (compile(&config, &testing::target()).unwrap(), RunSchedule::of(&config));
    let memory = predict(&program, &testing::target(), run_schedule).device.reserved_peak / 4;
    let mut device = Recorder::new(testing::target().with_memory(Bytes(memory)));
    prime(&mut device, &program, run_schedule).unwrap();
    let launched = program.work().iter().filter(|work| device.launched.contains(work)).count();
    assert!(0 < launched && launched < program.work().len(), "{launched}");
    assert!(device.most <= memory, "{} of {memory} bytes", device.most);
    assert!(device.live.is_empty(), "all is given back");
}
