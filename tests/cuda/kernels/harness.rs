//! Runs an operation on both devices, with guarded memory, and compares the results.

use std::collections::HashMap;

use base::units::Bytes;
use device::{
    Buffer, Choice, CpuDevice, CudaDevice, Device, Placed, Pool, Region, Target, Tensor, Work, cpu_target,
    equip,
};
use ops::{DType, Op, TensorType};

use super::modes::{Mode, TestedModes};
use super::numbers::{Data, from_bytes, to_bytes};

/// Tolerance of an f32 result, relative to the norm of the CPU's: both are within 2e-6 of the exact result.
pub(crate) const TOLERANCE: f64 = 4e-6;

/// Guard bytes after every operand that must not be written. Without them, an emulated card with address checks also
/// detects out-of-bounds reads.
const GUARD: u64 = 256;

/// Both devices.
pub(crate) struct Devices {
    cuda: CudaDevice,
    /// The same card for modes whose library rejects GELU epilogues, created at its first use: a device plans each
    /// matmul shape once.
    without_gelu: Option<CudaDevice>,
    cpu: CpuDevice,
    rows: RowOffset,
    /// The mode of all operations; by default it depends on the case number.
    fixed: Option<Mode>,
    tested: HashMap<OpTypes, TestedModes>,
}

/// An operation and the types of its inputs and outputs.
type OpTypes = (&'static str, Vec<DType>);

fn op_types(op: &Op, inputs: &[Data]) -> OpTypes {
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

/// The offset of each operand from the start of its memory in rows, inputs first, then outputs. An aliased output has
/// the input's offset.
pub(crate) type RowOffset = fn(operand: usize) -> usize;

/// The required accuracy of a result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exactness {
    /// The number of roundings of a 16-bit result.
    pub(crate) roundings: f64,
    /// The tolerance of f32 results.
    pub(crate) tolerance: f64,
}

/// Error bound of an f32 sum of `inner` products on tensor cores, relative to the norm of many such sums of numbers of
/// both signs.
///
/// Tensor cores add at least 8 products per step: the exact products and the partial sum are truncated one bit below
/// the last place of the largest, and their sum is truncated to f32. The root mean square of a truncation error is 1 /
/// sqrt(3) of its maximum: 0.58 of 2^-23 for the sum, and 3 * 0.58 of 2^-24 for the 9 addends of random sign, relative
/// to the largest, which is the partial sum. The partial sum of numbers of both signs grows like a square root, and on
/// average is 2/3 of the final sum. So each step costs 2/3 (0.58 + 0.87) 2^-23 = 0.97 of 2^-23 of the final sum, and
/// the steps' errors add up at most.
pub(crate) fn tensor_core_error(inner: usize) -> f64 {
    inner.div_ceil(8) as f64 * 2.0_f64.powi(-23)
}

impl Default for Exactness {
    fn default() -> Exactness {
        Exactness { roundings: 1.0, tolerance: TOLERANCE }
    }
}

impl Devices {
    pub(crate) fn new() -> Devices {
        let target = cpu_target(Some(Bytes(4 << 30))).expect("the CPU has a name");
        let target = target.expect("its memory size is known");
        let cpu = CpuDevice::new(target).expect("threads can be started");
        let (fixed, tested) = (None, HashMap::new());
        Devices { cuda: card(), without_gelu: None, cpu, rows: |_| 0, fixed, tested }
    }

    /// Sets the mode of all later operations.
    pub(crate) fn fix_mode(&mut self, mode: Mode) {
        self.fixed = Some(mode);
    }

    /// The card for a mode.
    fn card(&mut self, mode: Mode) -> &mut CudaDevice {
        let without_gelu = mode.rejects_gelu_epilogue() && self.are_emulated();
        if without_gelu { self.without_gelu.get_or_insert_with(card) } else { &mut self.cuda }
    }

    /// Sets the row offsets of all later operands on the card.
    pub(crate) fn set_row_offsets(&mut self, rows: RowOffset) {
        self.rows = rows;
    }

    /// Whether the card is emulated.
    pub(crate) fn are_emulated(&self) -> bool {
        is_emulated(self.cuda.target())
    }

    /// Autotunes the matmuls of `op` on the CUDA device, or uses the stored choices. Returns all choices so far.
    pub(crate) fn choose(&mut self, op: &Op, inputs: &[Data], stored: &[Choice]) -> Vec<Choice> {
        let inputs: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
        let outputs = op.outputs(&inputs).expect("the test's inputs fit the operation");
        let workspace = op.workspace(&inputs, &outputs, &self.cuda.target().workspace_limits(Pool::Device));
        let rows = self.rows;
        let placed = |(operand, &ty): (usize, &TensorType)| Placed::new(ty, start(ty, rows(operand)));
        let inputs: Vec<Placed> = inputs.iter().enumerate().map(placed).collect();
        let outputs = (inputs.len()..).zip(&outputs).map(placed).collect();
        let mode = self.fixed.expect("choices are made on one card");
        mode.set(0);
        self.card(mode)
            .choose(&[Work { home: Pool::Device, op: op.clone(), inputs, outputs, workspace }], stored)
            .unwrap();
        self.choices()
    }

    /// The CUDA device's choices so far.
    pub(crate) fn choices(&mut self) -> Vec<Choice> {
        self.card(self.fixed.expect("choices are made on one card")).choices()
    }

    /// The outputs of `op` on the CUDA device. Asserts that they do not depend on in-place execution or on an emulated
    /// card's thread order.
    pub(crate) fn cuda(&mut self, op: &Op, inputs: &[Data]) -> Vec<Data> {
        let (mode, orders) = match self.fixed {
            Some(mode) => (mode, vec![0, 1, 7]),
            None => self.tested.entry(op_types(op, inputs)).or_default().next(),
        };
        let rows = self.rows;
        let card = self.card(mode);
        let mut launches = orders.iter().enumerate().map(|(number, &order)| {
            mode.set(order);
            let (share, guard) = if number % 2 == 1 { (true, 0) } else { (false, GUARD) };
            launch(card, op, inputs, share, rows, guard)
        });
        let first = launches.next().expect("there is an order");
        for other in launches {
            let same = first.iter().zip(&other).all(|(a, b)| a.bits() == b.bits());
            assert!(same, "{}: different bits in place, or with another order of {orders:?}", op.name());
        }
        first
    }

    /// The outputs of `reference` on the CPU device, with the inputs converted to f32.
    pub(crate) fn expected(&mut self, reference: &Op, inputs: &[Data]) -> Vec<Data> {
        let inputs: Vec<Data> = inputs.iter().map(Data::to_f32).collect();
        launch(&mut self.cpu, reference, &inputs, false, |_| 0, GUARD)
    }

    /// The outputs of `op` on the CPU device, with the same inputs.
    pub(crate) fn cpu(&mut self, op: &Op, inputs: &[Data]) -> Vec<Data> {
        launch(&mut self.cpu, op, inputs, false, |_| 0, GUARD)
    }

    /// Asserts that the outputs of `op` on the CUDA device equal those of `reference` on the CPU device with f32
    /// inputs, up to rounding to the output's type. Returns the outputs.
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

    /// The same with a custom comparison. `wrong` receives the output's index, all expected outputs, the output and its
    /// expected value, and returns the problem, if any.
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
    /// Asserts that each operation was tested in all modes that affect it.
    fn drop(&mut self) {
        if !std::thread::panicking() && self.are_emulated() {
            for ((op, types), tested) in &self.tested {
                assert!(
                    tested.is_complete(op, types),
                    "{op} of {types:?} was tested in these modes only: {tested:?}"
                );
            }
        }
    }
}

fn card() -> CudaDevice {
    let equipment = equip(0).expect("a card or the emulated stack");
    let mut target = equipment.target(Bytes(0));
    if is_emulated(&target) {
        // A small workspace: filling a large one would dominate the run time.
        target.product_workspace = Bytes(1 << 20);
    }
    CudaDevice::new(target, 0).expect("a usable card")
}

fn is_emulated(card: &Target) -> bool {
    card.name.starts_with("emulated")
}

/// The error of a result beyond its tolerance, if any.
pub(crate) fn difference(found: &Data, expected: &[f32], exactness: Exactness) -> Option<String> {
    let numbers = || found.numbers.iter().zip(expected).map(|(&f, &e)| (f64::from(f), f64::from(e)));
    let norm = numbers().map(|(_, e)| e * e).sum::<f64>().sqrt();
    let Some(half_unit) = half_unit(found.ty.dtype) else {
        let error = numbers().map(|(f, e)| (f - e) * (f - e)).sum::<f64>().sqrt();
        let error = if norm > 0.0 { error / norm } else { error };
        // NaN must fail too.
        let right = error < exactness.tolerance;
        return (!right).then(|| format!("has an error of {error:e}"));
    };
    let noise = exactness.tolerance * norm / (expected.len() as f64).sqrt();
    first_outlier(found, expected, |index| {
        exactness.roundings * half_unit.of(f64::from(expected[index])) * 1.001 + noise
    })
}

/// The first element whose error exceeds its bound, if any.
pub(crate) fn first_outlier(
    found: &Data,
    expected: &[f32],
    allowed: impl Fn(usize) -> f64,
) -> Option<String> {
    let numbers = found.numbers.iter().zip(expected).map(|(&f, &e)| (f64::from(f), f64::from(e)));
    let wrong = numbers.enumerate().find(|&(index, (f, e))| {
        // NaN must fail too.
        let right = (f - e).abs() <= allowed(index);
        !right
    });
    wrong.map(|(index, (f, e))| format!("has {f:e} instead of {e:e} at {index}"))
}

/// Half a unit in the last place of a 16-bit type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HalfUnit {
    pub(crate) relative: f64,
    least: f64,
}

impl HalfUnit {
    /// The maximum rounding error of a number.
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
    rows: RowOffset,
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

/// Allocates a tensor with rows before it and a guard after it, filled with NaN bits.
fn allocate(device: &mut dyn Device, ty: TensorType, rows: usize, guard: u64) -> Tensor {
    let offset = start(ty, rows);
    let bytes = offset + ty.bytes() + guard;
    let buffer = device.allocate(Pool::Device, bytes).unwrap();
    device.write(Region { buffer, offset: 0, bytes }, &vec![0xFF; bytes as usize]).unwrap();
    Tensor { buffer, offset, ty }
}

/// The offset in bytes of a tensor with `rows` rows before it.
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
    let guards = [("before", 0, offset), ("after", end, guard)];
    for (place, offset, bytes) in guards.into_iter().filter(|(_, _, bytes)| *bytes > 0) {
        let mut guard = vec![0; bytes as usize];
        device.read(Region { buffer: tensor.buffer, offset, bytes }, &mut guard).unwrap();
        assert!(guard.iter().all(|&byte| byte == 0xFF), "{} wrote {place} {}", op.name(), tensor.ty);
    }
}
