//! Runs an operation on both devices, on memory that shows mistakes, and compares.

use std::collections::HashMap;

use base::units::Bytes;
use device::{
    Buffer, Choice, CpuDevice, CudaDevice, Device, Placed, Pool, Region, Target, Tensor, Work, cpu_target,
    equip,
};
use ops::{DType, Op, TensorType};

use super::numbers::{Data, from_bytes, to_bytes};
use super::ways::{Tried, Way};

/// How far an f32 result may be from the CPU's, relative to the norm of that: both are within 2e-6 of the truth.
pub(crate) const TOLERANCE: f64 = 4e-6;

/// Bytes behind every operand that nothing may write. Where there are none, an emulated card that checks addresses sees what is
/// read there, too.
const GUARD: u64 = 256;

/// Both devices.
pub(crate) struct Devices {
    cuda: CudaDevice,
    /// The same card, once it was needed, where the library has no epilogue that stores what goes into GELU: a device plans
    /// each product once.
    refused: Option<CudaDevice>,
    cpu: CpuDevice,
    rows: RowsBefore,
    /// What every operation goes by, or each by the number of the case.
    fixed: Option<Way>,
    tried: HashMap<Kind, Tried>,
}

/// An operation and each type that it has among its inputs and outputs.
type Kind = (&'static str, Vec<DType>);

fn kind(op: &Op, inputs: &[Data]) -> Kind {
    let inputs: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
    let outputs = op.outputs(&inputs).expect("the test's inputs fit the operation");
    let mut types = Vec::new();
    for ty in inputs.iter().chain(&outputs) {
        if !types.contains(&ty.dtype) {
            types.push(ty.dtype);
        }
    }
    (op.name(), types)
}

/// How many rows an operand is behind the start of its memory, for each input and then each output. One that takes another's
/// place is where that is.
pub(crate) type RowsBefore = fn(operand: usize) -> usize;

/// How exact a result must be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exactness {
    /// How often a 16-bit result may have been rounded.
    pub(crate) roundings: f64,
    /// What f32 results are held to.
    pub(crate) tolerance: f64,
}

/// What tensor cores may make an f32 sum of `inner` products off by, relative to the norm of many such sums of numbers of
/// either sign.
///
/// They add at least 8 products at a time: exact products and the sum so far are cut off one bit below the last place of
/// the largest, and their sum is cut off to f32. A cut costs, as a root mean square, 1 / sqrt(3) of the most it may: of the
/// sum 0.58 of 2^-23, and of 9 addends, either way as their signs are, 3 * 0.58 of 2^-24 of the largest of them, which is
/// the sum so far. Of numbers of either sign that grows as a root does, and on the way is 2/3 of what it ends as. So each
/// step costs 2/3 (0.58 + 0.87) 2^-23 = 0.97 of 2^-23 of the whole, and steps add up at the most.
pub(crate) fn of_tensor_cores(inner: usize) -> f64 {
    inner.div_ceil(8) as f64 * 2.0_f64.powi(-23)
}

impl Default for Exactness {
    fn default() -> Exactness {
        Exactness { roundings: 1.0, tolerance: TOLERANCE }
    }
}

impl Devices {
    pub(crate) fn new() -> Devices {
        let target = cpu_target(Some(Bytes(4 << 30))).expect("the processor has a name");
        let target = target.expect("its memory is said");
        let cpu = CpuDevice::new(target).expect("threads can be started");
        let (fixed, tried) = (None, HashMap::new());
        Devices { cuda: card(), refused: None, cpu, rows: |_| 0, fixed, tried }
    }

    /// From now on, everything goes one way.
    pub(crate) fn fix(&mut self, way: Way) {
        self.fixed = Some(way);
    }

    /// The card that goes a way.
    fn card(&mut self, way: Way) -> &mut CudaDevice {
        let refuses = way.refuses() && self.are_emulated();
        if refuses { self.refused.get_or_insert_with(card) } else { &mut self.cuda }
    }

    /// From now on, operands on the card begin at some row of a tensor.
    pub(crate) fn begin_at(&mut self, rows: RowsBefore) {
        self.rows = rows;
    }

    /// Whether the card is one of `tests/emulator`.
    pub(crate) fn are_emulated(&self) -> bool {
        is_emulated(self.cuda.target())
    }

    /// Has the CUDA device choose how it computes the products of `op`, or take what was chosen before. Returns all
    /// that it has chosen.
    pub(crate) fn choose(&mut self, op: &Op, inputs: &[Data], stored: &[Choice]) -> Vec<Choice> {
        let inputs: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
        let outputs = op.outputs(&inputs).expect("the test's inputs fit the operation");
        let workspace = op.workspace(&inputs, &outputs, &self.cuda.target().workspace_limits(Pool::Device));
        let rows = self.rows;
        let placed = |(operand, &ty): (usize, &TensorType)| Placed::new(ty, start(ty, rows(operand)));
        let inputs: Vec<Placed> = inputs.iter().enumerate().map(placed).collect();
        let outputs = (inputs.len()..).zip(&outputs).map(placed).collect();
        let way = self.fixed.expect("choices are made on one card");
        way.emulate(0);
        self.card(way)
            .choose(&[Work { home: Pool::Device, op: op.clone(), inputs, outputs, workspace }], stored)
            .unwrap();
        self.choices()
    }

    /// What the CUDA device has chosen so far.
    pub(crate) fn choices(&mut self) -> Vec<Choice> {
        self.card(self.fixed.expect("choices are made on one card")).choices()
    }

    /// The outputs of `op` on the CUDA device, whether it works in place where it may or not, and whatever order the threads of
    /// an emulated one take.
    pub(crate) fn cuda(&mut self, op: &Op, inputs: &[Data]) -> Vec<Data> {
        let (way, orders) = match self.fixed {
            Some(way) => (way, vec![0, 1, 7]),
            None => self.tried.entry(kind(op, inputs)).or_default().next(),
        };
        let rows = self.rows;
        let card = self.card(way);
        let mut launches = orders.iter().enumerate().map(|(number, &order)| {
            way.emulate(order);
            let (share, guard) = if number % 2 == 1 { (true, 0) } else { (false, GUARD) };
            launch(card, op, inputs, share, rows, guard)
        });
        let first = launches.next().expect("there is an order");
        for again in launches {
            let same = first.iter().zip(&again).all(|(a, b)| a.bits() == b.bits());
            assert!(same, "{}: other bits in place or in another order of {orders:?}", op.name());
        }
        first
    }

    /// The outputs of `reference` on the CPU device, of the same numbers in f32.
    pub(crate) fn expected(&mut self, reference: &Op, inputs: &[Data]) -> Vec<Data> {
        let widened: Vec<Data> = inputs.iter().map(Data::widened).collect();
        launch(&mut self.cpu, reference, &widened, false, |_| 0, GUARD)
    }

    /// The outputs of `op` on the CPU device, of the same operands.
    pub(crate) fn expected_of_same(&mut self, op: &Op, inputs: &[Data]) -> Vec<Data> {
        launch(&mut self.cpu, op, inputs, false, |_| 0, GUARD)
    }

    /// Asserts that `op` on the CUDA device makes of its inputs what the CPU device makes of the same numbers in
    /// f32 with `reference`, but for the rounding to the output's own type.
    /// Returns what it makes.
    pub(crate) fn check(&mut self, op: &Op, reference: &Op, inputs: &[Data]) -> Vec<Data> {
        let exactness = Exactness::default();
        self.checked(op, reference, inputs, |_, _, found, expected| {
            difference(found, &expected.numbers, exactness)
        })
    }

    pub(crate) fn check_within(&mut self, exactness: Exactness, op: &Op, reference: &Op, inputs: &[Data]) {
        self.check_outputs(op, reference, inputs, |_, _, found, expected| {
            difference(found, &expected.numbers, exactness)
        });
    }

    /// The same with what is wrong with an output, of its number, all that is expected, itself and what it should be.
    pub(crate) fn check_outputs(
        &mut self,
        op: &Op,
        reference: &Op,
        inputs: &[Data],
        wrong: impl Fn(usize, &[Data], &Data, &Data) -> Option<String>,
    ) {
        self.checked(op, reference, inputs, wrong);
    }

    fn checked(
        &mut self,
        op: &Op,
        reference: &Op,
        inputs: &[Data],
        wrong: impl Fn(usize, &[Data], &Data, &Data) -> Option<String>,
    ) -> Vec<Data> {
        let all = self.expected(reference, inputs);
        let found = self.cuda(op, inputs);
        assert_eq!(found.len(), all.len(), "{} has as many outputs as its reference", op.name());
        for (index, (found, expected)) in found.iter().zip(&all).enumerate() {
            if let Some(problem) = wrong(index, &all, found, expected) {
                let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
                panic!("{op:?} of {types:?}: output {index} {problem}");
            }
        }
        found
    }
}

impl Drop for Devices {
    /// An operation that is not tried in every way that is open to it would be tested less than it seems.
    fn drop(&mut self) {
        if !std::thread::panicking() && self.are_emulated() {
            for ((op, types), tried) in &self.tried {
                assert!(tried.is_complete(op, types), "{op} of {types:?} was tried only so: {tried:?}");
            }
        }
    }
}

fn card() -> CudaDevice {
    let equipment = equip(0).expect("there is a card, or what stands in for it");
    let mut target = equipment.target(Bytes(0));
    if is_emulated(&target) {
        // Most of the time went into filling what no product there needs.
        target.product_workspace = Bytes(1 << 20);
    }
    CudaDevice::new(target, 0).expect("the card can be used")
}

fn is_emulated(card: &Target) -> bool {
    card.name.starts_with("emulated")
}

/// What is wrong with a result.
pub(crate) fn difference(found: &Data, expected: &[f32], exactness: Exactness) -> Option<String> {
    let numbers = || found.numbers.iter().zip(expected).map(|(&f, &e)| (f64::from(f), f64::from(e)));
    let norm = numbers().map(|(_, e)| e * e).sum::<f64>().sqrt();
    let Some(half_unit) = half_unit(found.ty.dtype) else {
        let error = numbers().map(|(f, e)| (f - e) * (f - e)).sum::<f64>().sqrt();
        let error = if norm > 0.0 { error / norm } else { error };
        // So that not-a-number is wrong too.
        let right = error < exactness.tolerance;
        return (!right).then(|| format!("is off by {error:e}"));
    };
    let noise = exactness.tolerance * norm / (expected.len() as f64).sqrt();
    beyond(found, expected, |index| {
        exactness.roundings * half_unit.of(f64::from(expected[index])) * 1.001 + noise
    })
}

/// The first number that is further off than it may be at its index.
pub(crate) fn beyond(found: &Data, expected: &[f32], allowed: impl Fn(usize) -> f64) -> Option<String> {
    let numbers = found.numbers.iter().zip(expected).map(|(&f, &e)| (f64::from(f), f64::from(e)));
    let wrong = numbers.enumerate().find(|&(index, (f, e))| {
        // So that not-a-number is wrong too.
        let right = (f - e).abs() <= allowed(index);
        !right
    });
    wrong.map(|(index, (f, e))| format!("has {f:e} for {e:e} at {index}"))
}

/// Half a unit in the last place of a 16-bit type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HalfUnit {
    pub(crate) relative: f64,
    least: f64,
}

impl HalfUnit {
    /// What rounding a number may change.
    pub(crate) fn of(self, number: f64) -> f64 {
        self.relative * number.abs() + self.least
    }
}

pub(crate) fn half_unit(dtype: DType) -> Option<HalfUnit> {
    match dtype {
        DType::F32 | DType::I32 | DType::U16 | DType::U8 | DType::U4 => None,
        DType::BF16 => Some(HalfUnit { relative: 2.0_f64.powi(-8), least: 2.0_f64.powi(-134) }),
        DType::F16 => Some(HalfUnit { relative: 2.0_f64.powi(-11), least: 2.0_f64.powi(-25) }),
    }
}

/// The outputs of `op` on a device.
fn launch(
    device: &mut dyn Device,
    op: &Op,
    inputs: &[Data],
    share: bool,
    rows: RowsBefore,
    guard: u64,
) -> Vec<Data> {
    let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
    let output_types = op.outputs(&types).expect("the test's inputs fit the operation");
    let mut aliases = op.updates().to_vec();
    if share {
        aliases.extend(op.may_overwrite());
    }
    let input_tensors = inputs.iter().enumerate();
    let input_tensors: Vec<Tensor> =
        input_tensors.map(|(input, data)| allocate(device, data.ty, rows(input), guard)).collect();
    for (tensor, input) in input_tensors.iter().zip(inputs) {
        device.write(tensor.region(), &to_bytes(&input.numbers, input.ty.dtype)).unwrap();
    }
    let output_tensors: Vec<Tensor> = output_types
        .iter()
        .enumerate()
        .map(|(output, &ty)| match aliases.iter().find(|alias| alias.0 == output) {
            Some(&(_, input)) => input_tensors[input],
            None => allocate(device, ty, rows(inputs.len() + output), guard),
        })
        .collect();
    let bytes = op.workspace(&types, &output_types, &device.target().workspace_limits(Pool::Device));
    let workspace =
        (bytes > 0).then(|| allocate(device, TensorType::f32(&[bytes.div_ceil(4) as usize]), 0, guard));
    let region = workspace.map(|tensor| Region { bytes, ..tensor.region() });
    device.launch(op, &input_tensors, &output_tensors, region).unwrap();

    for (index, (tensor, input)) in input_tensors.iter().zip(inputs).enumerate() {
        let written = aliases.iter().any(|alias| alias.1 == index);
        let same = read(device, tensor).bits() == input.bits();
        assert!(written || same, "{} changed its input {index}", op.name());
    }
    let outputs = output_tensors.iter().map(|tensor| read(device, tensor)).collect();
    let mut buffers: Vec<Buffer> = Vec::new();
    for tensor in input_tensors.iter().chain(&output_tensors).chain(&workspace) {
        if !buffers.contains(&tensor.buffer) {
            assert_guarded(device, tensor, op, guard);
            device.free(tensor.buffer).unwrap();
            buffers.push(tensor.buffer);
        }
    }
    outputs
}

/// Memory for a tensor, with rows before it and a guard behind it, filled with what reads as not-a-number.
fn allocate(device: &mut dyn Device, ty: TensorType, rows: usize, guard: u64) -> Tensor {
    let offset = start(ty, rows);
    let bytes = offset + ty.bytes() + guard;
    let buffer = device.allocate(Pool::Device, bytes).unwrap();
    device.write(Region { buffer, offset: 0, bytes }, &vec![0xFF; bytes as usize]).unwrap();
    Tensor { buffer, offset, ty }
}

/// Where a tensor begins that has as many rows before it, in bytes.
fn start(ty: TensorType, rows: usize) -> u64 {
    (rows * ty.shape.last()) as u64 * ty.dtype.bytes()
}

fn read(device: &mut dyn Device, tensor: &Tensor) -> Data {
    let mut bytes = vec![0; tensor.ty.bytes() as usize];
    device.read(tensor.region(), &mut bytes).unwrap();
    Data { ty: tensor.ty, numbers: from_bytes(&bytes, tensor.ty.dtype) }
}

fn assert_guarded(device: &mut dyn Device, tensor: &Tensor, op: &Op, guard: u64) {
    let (offset, end) = (tensor.offset, tensor.offset + tensor.ty.bytes());
    let guards = [("before", 0, offset), ("behind", end, guard)];
    for (place, offset, bytes) in guards.into_iter().filter(|(_, _, bytes)| *bytes > 0) {
        let mut guard = vec![0; bytes as usize];
        device.read(Region { buffer: tensor.buffer, offset, bytes }, &mut guard).unwrap();
        assert!(guard.iter().all(|&byte| byte == 0xFF), "{} wrote {place} {}", op.name(), tensor.ty);
    }
}
