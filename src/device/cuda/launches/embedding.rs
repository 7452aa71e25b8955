//! Token embedding with an optional scale and optional learned positions.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{DType, Embedding, EmbeddingBackward, Fill, TypeError};

use super::initialise::fill;
use super::sizes::{BLOCK, blocks, count, flag, optional, pointer, size, size_argument};

/// Rows of x per block: one per warp.
const ROWS: usize = 8;
/// Elements of the positions' gradient per block.
const POSITION_ELEMENTS: usize = 1024;
/// Partial sums of the table's gradient per block: one per warp.
const PARTIALS: usize = 8;
/// Channels of these partial sums per block.
const CHANNELS: usize = 128;
/// Bits of a token id per pass of the radix sort.
const DIGIT_BITS: u32 = 8;
/// Threads of the sorting block.
const SORT_BLOCK: u32 = 1024;

/// Kernels with their input and output types.
type Kernels = &'static [(DType, DType, &'static str)];

/// By the types of the tables and of x.
const EMBEDDING: Kernels = &[
    (DType::F32, DType::F32, "embedding_f32_f32"),
    (DType::F32, DType::BF16, "embedding_f32_bf16"),
    (DType::F32, DType::F16, "embedding_f32_f16"),
    (DType::BF16, DType::F32, "embedding_bf16_f32"),
    (DType::BF16, DType::BF16, "embedding_bf16_bf16"),
    (DType::BF16, DType::F16, "embedding_bf16_f16"),
    (DType::F16, DType::F32, "embedding_f16_f32"),
    (DType::F16, DType::BF16, "embedding_f16_bf16"),
    (DType::F16, DType::F16, "embedding_f16_f16"),
];

/// Kernel names by the types of dx and of the gradients.
macro_rules! backward {
    ($name:literal) => {
        &[
            (DType::F32, DType::F32, concat!($name, "f32_f32")),
            (DType::F32, DType::BF16, concat!($name, "f32_bf16")),
            (DType::BF16, DType::F32, concat!($name, "bf16_f32")),
            (DType::BF16, DType::BF16, concat!($name, "bf16_bf16")),
            (DType::F32, DType::F16, concat!($name, "f32_f16")),
            (DType::F16, DType::F32, concat!($name, "f16_f32")),
            (DType::F16, DType::F16, concat!($name, "f16_f16")),
        ]
    };
}

const POSITIONS: Kernels = backward!("embedding_positions_backward_");
const POSITIONS_OF_DOCUMENTS: Kernels = backward!("embedding_positions_of_documents_backward_");
const TABLE: Kernels = backward!("embedding_table_backward_");
const FINISH: Kernels = backward!("embedding_table_finish_");

/// # Errors
/// There is no kernel for the types.
fn by_dtypes(
    operation: &'static str,
    [from, to]: [DType; 2],
    kernels: Kernels,
) -> Result<&'static str, DeviceError> {
    let kernel = kernels.iter().find(|kernel| (kernel.0, kernel.1) == (from, to));
    let none = || TypeError { operation, problem: format!("has no kernel from {from} to {to}") };
    Ok(kernel.ok_or_else(none)?.2)
}

pub(super) fn forward(
    op: &Embedding,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [tokens, table] = [&inputs[0], &inputs[1]];
    let rows = tokens.ty.elements();
    launcher.kernel(
        by_dtypes("embedding", [table.ty.dtype, outputs[0].ty.dtype], EMBEDDING)?,
        [blocks(rows, ROWS)?, 1, 1],
        BLOCK,
        0,
        &[
            pointer(&outputs[0]),
            pointer(tokens),
            pointer(table),
            optional(inputs.get(2).map(|positions| positions.address)),
            size_argument(rows)?,
            size_argument(tokens.ty.shape.last())?,
            size_argument(table.ty.shape.last())?,
            size_argument(table.ty.shape.rows())?,
            Argument::F32(op.scale),
            optional(inputs.get(3).map(|starts| starts.address)),
        ],
    )
}

/// Accumulated gradients are in the outputs' memory.
pub(super) fn backward(
    op: &EmbeddingBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    (workspace, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    table_gradient(op, inputs, &outputs[0], workspace, launcher)?;
    let Some(positions) = outputs.get(1) else { return Ok(()) };
    let dx = &inputs[1];
    if op.documents {
        let channels = dx.ty.shape.last();
        return launcher.kernel(
            by_dtypes("embedding-backward", [dx.ty.dtype, op.gradients], POSITIONS_OF_DOCUMENTS)?,
            [size(positions.ty.shape.rows())?, blocks(channels, BLOCK as usize)?, 1],
            BLOCK,
            0,
            &[
                pointer(positions),
                pointer(dx),
                pointer(&inputs[2]),
                size_argument(inputs[0].ty.elements())?,
                size_argument(inputs[0].ty.shape.last())?,
                size_argument(channels)?,
                flag(op.accumulate_positions),
            ],
        );
    }
    let sequence = inputs[0].ty.shape.last();
    if positions.ty.shape.rows() > sequence && !op.accumulate_positions {
        // Rows behind the sequence have no gradient.
        fill(&Fill { output: positions.ty, value: 0.0 }, &[*positions], launcher)?;
    }
    let elements = sequence * positions.ty.shape.last();
    launcher.kernel(
        by_dtypes("embedding-backward", [dx.ty.dtype, op.gradients], POSITIONS)?,
        [blocks(elements, POSITION_ELEMENTS)?, 1, 1],
        BLOCK,
        0,
        &[
            pointer(positions),
            pointer(dx),
            size_argument(inputs[0].ty.shape.rows())?,
            count(elements),
            flag(op.accumulate_positions),
        ],
    )
}

/// Sorts the tokens, so that those of one table row are adjacent, computes partial sums of a fixed number of tokens
/// each, and adds the partial sums of each row.
fn table_gradient(
    op: &EmbeddingBackward,
    inputs: &[Operand],
    table: &Operand,
    workspace: u64,
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [tokens, dx] = [&inputs[0], &inputs[1]];
    let (count, channels) = (tokens.ty.elements(), dx.ty.shape.last());
    let [order_bytes, _] = EmbeddingBackward::workspace_parts(&tokens.ty, channels);
    let (order, partials) = (Argument::Pointer(workspace), Argument::Pointer(workspace + order_bytes));
    if !op.accumulate_table {
        // Most rows have no token in the batch.
        fill(&Fill { output: table.ty, value: 0.0 }, &[*table], launcher)?;
    }
    launcher.kernel(
        "order_tokens",
        [1, 1, 1],
        SORT_BLOCK,
        0,
        &[
            order.clone(),
            partials.clone(),
            pointer(tokens),
            size_argument(count)?,
            size_argument(op.vocabulary)?,
            Argument::U32(passes(op.vocabulary)),
        ],
    )?;
    let sums = count.div_ceil(EmbeddingBackward::TOKENS_PER_PARTIAL);
    let grid = [blocks(sums, PARTIALS)?, blocks(channels, CHANNELS)?, 1];
    let sizes = [size_argument(count)?, size_argument(op.vocabulary)?, size_argument(channels)?];
    let mut arguments = vec![pointer(table), partials, order, pointer(tokens), pointer(dx)];
    arguments.extend(sizes);
    arguments.extend([Argument::F32(op.scale), flag(op.accumulate_table)]);
    // Both kernels have the same parameters.
    for kernels in [TABLE, FINISH] {
        let name = by_dtypes("embedding-backward", [dx.ty.dtype, op.gradients], kernels)?;
        launcher.kernel(name, grid, BLOCK, 0, &arguments)?;
    }
    Ok(())
}

/// The number of passes of the radix sort. The largest key is the vocabulary's length, which stands for tokens outside
/// the vocabulary.
fn passes(vocabulary: usize) -> u32 {
    (usize::BITS - vocabulary.leading_zeros()).div_ceil(DIGIT_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sort_passes_cover_all_digits() {
        let cases = [(1, 1), (255, 1), (256, 2), (50_304, 2), (65_535, 2), (65_536, 3)];
        for (vocabulary, expected) in cases {
            assert_eq!(passes(vocabulary), expected, "{vocabulary} tokens");
        }
    }
}
