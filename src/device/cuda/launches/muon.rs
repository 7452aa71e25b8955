//! Muon's kernels and matmuls, one parameter at a time.

use std::ops::Range;

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use crate::cuda::matmul::{Added, Epilogue, Matmul, Matrix};
use ops::{DType, Member, Muon, MuonScratch, OptimizerStep, TensorType};

use super::optimizer::{Bucket, each_element, in_format, kernels, words};
use super::sizes::{BLOCK, blocks, by_dtype, count};

/// Elements per block of the normalisation kernel.
const NORMALISED: usize = 16 * BLOCK as usize;

pub(super) fn update(
    op: &OptimizerStep,
    rule: &Muon,
    bucket: &Bucket,
    workspace: (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let scratch = Scratch { rule, places: rule.scratch(&op.gradients.members), workspace };
    let added = (1.0 - rule.momentum) as f32;
    let momentum_constants = words(&[added, if rule.nesterov { added } else { 0.0 }]);
    let update_constants = words(&[rule.weight_decay]);
    for member in op.gradients.members.iter() {
        let len = TensorType::f32(&[member.elements()]);
        let direction = Operand { address: scratch.direction(0), ty: len };
        let momentum_bucket = bucket.with_parameters(as_bucket(direction, member));
        let kernel = in_format(kernels!("muon_momentum"), op.format.states);
        each_element(
            std::slice::from_ref(member),
            kernel,
            &momentum_bucket.arguments(momentum_constants.clone())?,
            launcher,
        )?;
        let columns = member.shape.last();
        for rows in member.matrices() {
            scratch.normalise(rows.start * columns..rows.end * columns, launcher)?;
        }
        for rows in member.matrices() {
            scratch.orthogonalise(rows, columns, launcher)?;
        }
        let orthogonal =
            Operand { address: scratch.x(rule.steps, 0), ty: TensorType { dtype: rule.dtype, ..len } };
        let update_bucket = bucket.with_gradients(as_bucket(orthogonal, member));
        each_element(
            std::slice::from_ref(member),
            "muon",
            &update_bucket.arguments(update_constants.clone())?,
            launcher,
        )?;
    }
    Ok(())
}

/// An operand for the bucket in which `tensor` would be this member.
fn as_bucket(tensor: Operand, member: &Member) -> Operand {
    let address = tensor.address.wrapping_sub(tensor.ty.dtype.bytes_of(member.offset));
    Operand { address, ..tensor }
}

/// The scratch memory of one parameter.
struct Scratch<'a> {
    rule: &'a Muon,
    places: MuonScratch,
    workspace: (u64, u64),
}

impl Scratch<'_> {
    fn direction(&self, element: usize) -> u64 {
        self.workspace.0 + self.places.direction + DType::F32.bytes_of(element)
    }

    /// The address of `x` after a number of steps. Steps alternate between two buffers: `factors` and the directions'.
    fn x(&self, steps: usize, element: usize) -> u64 {
        let place = if steps.is_multiple_of(2) { self.places.factors } else { self.places.direction };
        self.workspace.0 + place + self.rule.dtype.bytes_of(element)
    }

    fn normalise(&self, matrix: Range<usize>, launcher: &mut Launcher) -> Result<(), DeviceError> {
        let direction = Argument::Pointer(self.direction(matrix.start));
        let sums = Argument::Pointer(self.workspace.0 + self.places.sums);
        let count = count(matrix.len());
        let squares = [sums.clone(), direction.clone(), count.clone()];
        launcher.kernel("muon_squares", [Muon::SUMS as u32, 1, 1], BLOCK, 0, &squares)?;
        let names = ["muon_normalise_f32", "muon_normalise_bf16", "muon_normalise_f16"];
        let kernel = by_dtype(self.rule.dtype, names)?;
        let factors = Argument::Pointer(self.x(0, matrix.start));
        let arguments = [factors, direction, sums, Argument::F32(self.rule.epsilon), count];
        launcher.kernel(kernel, [blocks(matrix.len(), NORMALISED)?, 1, 1], BLOCK, 0, &arguments)
    }

    fn orthogonalise(
        &self,
        rows: Range<usize>,
        columns: usize,
        launcher: &mut Launcher,
    ) -> Result<(), DeviceError> {
        let (rule, first) = (self.rule, rows.start * columns);
        let (is_tall, short, long) = (rows.len() > columns, rows.len().min(columns), rows.len().max(columns));
        let matrix = |address| Matrix { address, dtype: rule.dtype, transposed: false };
        let transposed_matrix = |address| Matrix { transposed: true, ..matrix(address) };
        let [gram, polynomial] =
            [self.places.gram, self.places.polynomial].map(|place| self.workspace.0 + place);
        let product = self.places.product;
        let workspace = (self.workspace.0 + product, self.workspace.1 - product);
        let plain = |[rows, inner, columns]: [usize; 3], [left, right]: [Matrix; 2], output| Matmul {
            rows,
            columns,
            inner,
            left,
            right,
            output: matrix(output),
            scale: 1.0,
            added: None,
            epilogue: Epilogue::None,
            tf32: rule.tf32,
            workspace,
        };
        let [a, b, c] = Muon::COEFFICIENTS;
        for step in 0..rule.steps {
            let (x, next) = (self.x(step, first), self.x(step + 1, first));
            let factors_pair =
                if is_tall { [transposed_matrix(x), matrix(x)] } else { [matrix(x), transposed_matrix(x)] };
            launcher.matmul(&plain([short, long, short], factors_pair, gram))?;
            let square = plain([short; 3], [matrix(gram); 2], polynomial);
            let added = Some(Added { address: gram, scale: b });
            launcher.matmul(&Matmul { scale: c, added, ..square })?;
            let factors_pair = if is_tall { [x, polynomial] } else { [polynomial, x] }.map(matrix);
            let scale = rule.scale_of(step, rows.len(), columns);
            let added = Some(Added { address: x, scale: scale * a });
            let matmul = plain([rows.len(), short, columns], factors_pair, next);
            launcher.matmul(&Matmul { scale, added, ..matmul })?;
        }
        Ok(())
    }
}
