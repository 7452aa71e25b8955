//! Convolutions of images, as matmuls of patches.
//!
//! Images are channels last: x num[B,H,W,C], y num[B,OH,OW,M]. A patch has the K = KH*KW*C/G elements of a group's channels
//! under the kernel, G groups. There is a patch for each of the N = B*OH*OW places; a slice of them is in memory at a time.
//! Weights num[M,C/G,KH,KW] are stored as in PyTorch.

use super::linear::{product_flops, product_workspace};
use super::{
    Arithmetic, DType, Op, OpKind, Operand, Operation, OutputRole, Shape, Tape, TensorType, TypeError,
    Window, WorkspaceLimits, expect_f32_or, expect_float, expect_inputs, expect_type,
};

/// What a convolution and its gradients have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    pub window: Window,
    /// Groups of channels with kernels of their own.
    pub groups: usize,
    pub bias: bool,
    /// Bytes of a slice of patches; at least one patch is in memory.
    pub slice_bytes: u64,
    /// Whether matmuls may round f32 operands to 11 bits of significand (TF32).
    pub tf32: bool,
}

/// `y = patches(x) W^T + bias`. Inputs: x, weight, then the optional bias num[M]. Output: y.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conv2d(pub Convolution);

/// The sum of `dy W` at each pixel under the kernel. A slice's terms are summed in f32, and rounded once to a 16-bit dx.
///
/// Inputs: dy num[B,OH,OW,M], weight, with `accumulate` the partial dx. Output: dx num[B,H,W,C].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conv2dInputGradient {
    pub convolution: Convolution,
    /// H and W.
    pub size: [usize; 2],
    pub accumulate: bool,
}

/// `dweight = dy^T patches(x)`, `dbias = sum of the rows of dy`, with `accumulate` added to the previous gradients.
///
/// Inputs: x, dy; with `accumulate` the previous dweight and, with a bias, dbias. Outputs: dweight and, with a bias, dbias.
/// Both are summed in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conv2dWeightGradient {
    pub convolution: Convolution,
    /// The dtype of the gradients.
    pub gradients: DType,
    pub accumulate: bool,
}

/// The patches of a group of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patches {
    /// H, W, C.
    pub image: [usize; 3],
    /// OH, OW.
    pub output: [usize; 2],
    /// N.
    pub rows: usize,
    pub rows_per_slice: usize,
    /// Channels of a group's input and output.
    pub channels: usize,
    pub features: usize,
    /// K.
    pub columns: usize,
    /// Type of an element of a patch.
    pub dtype: DType,
    /// Whether x itself has the patches: the kernel is a pixel.
    pub in_place: bool,
}

/// Bytes of the parts of the workspace, in this order; each starts at a multiple of `WORKSPACE_ALIGNMENT`. The matmuls' own
/// part comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvWorkspace {
    /// Weights num[M,KH,KW,C/G] if the kernel has several cells, or the gradients of weights and bias in f32.
    pub weights: u64,
    /// A slice of patches.
    pub patches: u64,
    /// The output channels of a group for a slice.
    pub group: u64,
}

/// Alignment of the parts of the workspace, in bytes.
const WORKSPACE_ALIGNMENT: u64 = 256;

impl Convolution {
    /// The patches of x num[B,H,W,C] for M output channels. The kernel fits the image.
    pub fn patches(&self, x: &TensorType, features: usize) -> Patches {
        self.patches_of(x, features, x.dtype)
    }

    /// The gradients of the patches of x, which are summed in f32.
    pub fn patch_gradients(&self, x: &TensorType, features: usize) -> Patches {
        self.patches_of(x, features, DType::F32)
    }

    fn patches_of(&self, x: &TensorType, features: usize, dtype: DType) -> Patches {
        let [samples, height, width, channels] = dims(&x.shape);
        let output = self.window.output([height, width]).unwrap_or([0; 2]);
        let rows = samples * output[0] * output[1];
        let channels_of_group = channels / self.groups;
        let columns = self.window.cells() * channels_of_group;
        let in_place = self.window == Window::PIXEL && self.groups == 1;
        let fitting = self.slice_bytes / dtype.bytes_of(columns);
        let rows_per_slice = if in_place { rows } else { (fitting as usize).clamp(1, rows.max(1)) };
        Patches {
            image: [height, width, channels],
            output,
            rows,
            rows_per_slice,
            channels: channels_of_group,
            features: features / self.groups,
            columns,
            dtype,
            in_place,
        }
    }

    /// The workspace apart from the matmuls', of the convolution and its input gradient or of its weight gradient.
    pub fn workspace(&self, x: DType, patches: &Patches, of_weight_gradient: bool) -> ConvWorkspace {
        let Patches { rows_per_slice, columns, features, dtype, .. } = *patches;
        let part = |bytes: u64| bytes.next_multiple_of(WORKSPACE_ALIGNMENT);
        let all_features = features * self.groups;
        let weights = match of_weight_gradient {
            true => DType::F32.bytes_of(all_features * (columns + usize::from(self.bias))),
            false if self.window.cells() == 1 => 0,
            false => x.bytes_of(all_features * columns),
        };
        ConvWorkspace {
            weights: part(weights),
            patches: if patches.in_place { 0 } else { part(dtype.bytes_of(rows_per_slice * columns)) },
            group: if self.groups == 1 { 0 } else { part(x.bytes_of(rows_per_slice * features)) },
        }
    }

    /// The type of the weights for x num[..,C] and M output channels.
    fn weight(&self, channels: usize, features: usize, dtype: DType) -> TensorType {
        let [height, width] = self.window.kernel;
        TensorType::new(dtype, &[features, channels / self.groups, height, width])
    }

    fn expect_weight(
        &self,
        operation: &'static str,
        weight: &TensorType,
        channels: usize,
        dtype: DType,
    ) -> Result<usize, TypeError> {
        let features = weight.shape.dims()[0];
        if !channels.is_multiple_of(self.groups) || !features.is_multiple_of(self.groups) {
            let problem = format!("{} groups do not divide {channels} or {features} channels", self.groups);
            return Err(TypeError { operation, problem });
        }
        expect_type(operation, "weight", weight, self.weight(channels, features, dtype))?;
        Ok(features)
    }

    /// The type of y for x and M output channels.
    fn output(
        &self,
        operation: &'static str,
        x: &TensorType,
        features: usize,
    ) -> Result<TensorType, TypeError> {
        let [samples, height, width, _] = expect_image(operation, "x", x)?;
        let Some([rows, columns]) = self.window.output([height, width]) else {
            let problem = format!("the kernel does not fit {x}");
            return Err(TypeError { operation, problem });
        };
        Ok(TensorType::new(x.dtype, &[samples, rows, columns, features]))
    }
}

impl ConvWorkspace {
    pub fn bytes(&self) -> u64 {
        self.weights + self.patches + self.group
    }
}

/// The four sizes of a tensor of images.
fn dims(shape: &Shape) -> [usize; 4] {
    let mut dims = [1; 4];
    dims[..shape.dims().len()].copy_from_slice(shape.dims());
    dims
}

/// The sizes of images num[B,H,W,C].
pub(super) fn expect_image(
    operation: &'static str,
    operand: &str,
    found: &TensorType,
) -> Result<[usize; 4], TypeError> {
    expect_float(operation, operand, found)?;
    <[usize; 4]>::try_from(found.shape.dims()).map_err(|_| TypeError {
        operation,
        problem: format!("{operand} is {found}, expected images [B, H, W, C]"),
    })
}

/// FLOPs of the matmul with a column of patches for each row of y.
fn flops(convolution: &Convolution, x: &TensorType, y: &TensorType) -> u64 {
    let patches = convolution.patches(x, y.shape.last());
    product_flops(patches.rows, patches.columns, y.shape.last())
}

impl Operation for Conv2d {
    fn kind(&self) -> Option<OpKind> {
        Some(OpKind::Linear)
    }

    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2 + usize::from(self.0.bias))?;
        let x = &inputs[0];
        let [.., channels] = expect_image(self.name(), "x", x)?;
        let features = self.0.expect_weight(self.name(), &inputs[1], channels, x.dtype)?;
        if self.0.bias {
            expect_type(self.name(), "bias", &inputs[2], TensorType::new(x.dtype, &[features]))?;
        }
        Ok(vec![self.0.output(self.name(), x, features)?])
    }

    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        flops(&self.0, &inputs[0], &outputs[0])
    }

    fn workspace(&self, inputs: &[TensorType], outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        let patches = self.0.patches(&inputs[0], outputs[0].shape.last());
        self.0.workspace(inputs[0].dtype, &patches, false).bytes() + product_workspace(limits)
    }

    fn operand(&self, _input: usize) -> Operand {
        Operand::Matrix
    }

    fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        self.0.tf32 = arithmetic.tf32;
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let dy = tape.output_gradient(0);
        let convolution = self.0;
        if tape.wants(1) {
            let mut inputs = vec![tape.input(0), dy];
            let previous = tape.partial(1);
            inputs.extend(previous);
            if convolution.bias && previous.is_some() {
                inputs.extend(tape.partial(2));
            }
            let op = Conv2dWeightGradient {
                convolution,
                gradients: tape.parameter_gradients(),
                accumulate: previous.is_some(),
            };
            let gradients = [OutputRole::Gradient(1), OutputRole::Gradient(2)];
            let outputs = &gradients[..1 + usize::from(convolution.bias)];
            tape.emit(Op::Conv2dWeightGradient(op), inputs, outputs);
        }
        if tape.wants(0) {
            let mut inputs = vec![dy, tape.input(1)];
            let partial = tape.partial(0);
            inputs.extend(partial);
            let [_, height, width, _] = dims(&tape.input_type(0).shape);
            let op =
                Conv2dInputGradient { convolution, size: [height, width], accumulate: partial.is_some() };
            tape.emit(Op::Conv2dInputGradient(op), inputs, &[OutputRole::Gradient(0)]);
        }
    }
}

impl Conv2dInputGradient {
    /// The type of dx.
    fn dx(&self, dy: &TensorType, weight: &TensorType) -> TensorType {
        let channels = weight.shape.dims()[1] * self.convolution.groups;
        let [height, width] = self.size;
        TensorType::new(dy.dtype, &[dy.shape.dims()[0], height, width, channels])
    }
}

impl Operation for Conv2dInputGradient {
    fn name(&self) -> &'static str {
        "conv2d-input-gradient"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2 + usize::from(self.accumulate))?;
        expect_image(self.name(), "dy", &inputs[0])?;
        expect_image(self.name(), "weight", &inputs[1])?;
        let dx = self.dx(&inputs[0], &inputs[1]);
        let features = self.convolution.expect_weight(self.name(), &inputs[1], dx.shape.last(), dx.dtype)?;
        expect_type(self.name(), "dy", &inputs[0], self.convolution.output(self.name(), &dx, features)?)?;
        if self.accumulate {
            expect_type(self.name(), "the partial gradient", &inputs[2], dx)?;
        }
        Ok(vec![dx])
    }

    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        flops(&self.convolution, &outputs[0], &inputs[0])
    }

    fn workspace(&self, inputs: &[TensorType], outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        let patches = self.convolution.patch_gradients(&outputs[0], inputs[0].shape.last());
        self.convolution.workspace(inputs[0].dtype, &patches, false).bytes() + product_workspace(limits)
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        if self.accumulate { &[(0, 2)] } else { &[] }
    }
}

impl Operation for Conv2dWeightGradient {
    fn name(&self) -> &'static str {
        "conv2d-weight-gradient"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let bias = usize::from(self.convolution.bias);
        expect_inputs(self.name(), inputs, 2 + if self.accumulate { 1 + bias } else { 0 })?;
        let (x, dy) = (&inputs[0], &inputs[1]);
        let [.., channels] = expect_image(self.name(), "x", x)?;
        let features = dy.shape.last();
        expect_type(self.name(), "dy", dy, self.convolution.output(self.name(), x, features)?)?;
        let mut outputs = vec![self.convolution.weight(channels, features, self.gradients)];
        expect_f32_or(x.dtype, self.name(), "dweight", &outputs[0])?;
        if self.convolution.bias {
            outputs.push(TensorType::new(self.gradients, &[features]));
        }
        for (found, wanted) in inputs[2..].iter().zip(&outputs) {
            expect_type(self.name(), "a previous gradient", found, *wanted)?;
        }
        Ok(outputs)
    }

    fn flops(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> u64 {
        flops(&self.convolution, &inputs[0], &inputs[1])
    }

    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        let patches = self.convolution.patches(&inputs[0], inputs[1].shape.last());
        let own = self.convolution.workspace(inputs[0].dtype, &patches, true);
        own.bytes() + product_workspace(limits)
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        match (self.accumulate, self.convolution.bias) {
            (false, _) => &[],
            (true, false) => &[(0, 2)],
            (true, true) => &[(0, 2), (1, 3)],
        }
    }

    fn accumulating(&self) -> Option<Op> {
        Some(Op::Conv2dWeightGradient(Conv2dWeightGradient { accumulate: true, ..*self }))
    }

    fn accumulated(&self) -> &'static [usize] {
        if self.convolution.bias { &[0, 1] } else { &[0] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspace_holds_a_slice_of_patches_and_the_weights() {
        let window = Window { kernel: [3, 3], stride: 1, padding: 1 };
        let convolution =
            Convolution { window, groups: 1, bias: true, slice_bytes: 9 * 8 * 4 * 10, tf32: false };
        let x = TensorType::f32(&[2, 4, 4, 8]);
        let patches = convolution.patches(&x, 16);
        assert_eq!((patches.rows, patches.rows_per_slice, patches.columns), (32, 10, 72));
        let weights = 16 * 72 * 4u64;
        let workspace = convolution.workspace(DType::F32, &patches, true);
        // 2880 bytes, in parts of 256.
        assert_eq!(workspace.patches, 3072);
        assert_eq!(workspace.weights, (weights + 16 * 4).next_multiple_of(256));
        assert_eq!(workspace.group, 0);

        // All patches at most, one patch at least.
        let of = |slice_bytes| Convolution { slice_bytes, ..convolution }.patches(&x, 16).rows_per_slice;
        assert_eq!([of(1 << 40), of(1)], [32, 1]);

        // A kernel of one pixel has its patches in x.
        let pixel = Convolution { window: Window::PIXEL, ..convolution };
        let patches = pixel.patches(&x, 16);
        assert_eq!((patches.rows_per_slice, pixel.workspace(DType::F32, &patches, false).bytes()), (32, 0));

        // Two groups of channels: half a patch, and the outputs of one group, 20 * 8 * 4 bytes.
        let grouped = Convolution { groups: 2, ..convolution };
        let patches = grouped.patches(&x, 16);
        assert_eq!((patches.rows_per_slice, patches.columns, patches.features), (20, 36, 8));
        assert_eq!(grouped.workspace(DType::F32, &patches, false).group, 768);
    }
}
