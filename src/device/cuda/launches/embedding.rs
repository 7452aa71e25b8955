//! Token plus learned position embedding.

use crate::device::DeviceError;
use crate::device::cuda::launcher::{Launcher, Operand};
use crate::ops::EmbeddingBackward;

use super::sizes::{BLOCK, blocks, count, flag, pointer, size_argument};

/// Rows of x that a block makes: one for each of its warps.
const ROWS: usize = 8;
/// Elements of the positions' gradient that a block makes.
const POSITION_ELEMENTS: usize = 1024;
/// Rows of the table that a block takes, of a small and of a large one: every block looks through all tokens.
const FEW_TABLE_ROWS: usize = 8;
const MANY_TABLE_ROWS: usize = 32;
/// Rows of a large table.
const LARGE_TABLE: usize = 1 << 14;
/// Channels that a warp takes at a time, of which a block takes a multiple.
const WARP_CHANNELS: usize = 128;
/// Blocks at most that share rows: the more, the sooner a token that is every fourth of a text is summed, and the more
/// often all tokens are looked through.
const MOST_CHANNEL_BLOCKS: usize = 8;

pub(super) fn forward(
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [tokens, table, positions] = [0, 1, 2].map(|index| &inputs[index]);
    let rows = tokens.ty.elements();
    launcher.kernel(
        "embedding",
        [blocks(rows, ROWS)?, 1, 1],
        BLOCK,
        0,
        &[
            pointer(&outputs[0]),
            pointer(tokens),
            pointer(table),
            pointer(positions),
            size_argument(rows)?,
            size_argument(tokens.ty.shape.last())?,
            size_argument(table.ty.shape.last())?,
            size_argument(table.ty.shape.rows())?,
        ],
    )
}

/// Gradients that are accumulated are in the outputs' own memory.
pub(super) fn backward(
    op: &EmbeddingBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [tokens, dx] = [&inputs[0], &inputs[1]];
    let channels = dx.ty.shape.last();
    let block_rows = if op.vocabulary < LARGE_TABLE { FEW_TABLE_ROWS } else { MANY_TABLE_ROWS };
    let block_channels = channels.div_ceil(WARP_CHANNELS).div_ceil(MOST_CHANNEL_BLOCKS) * WARP_CHANNELS;
    launcher.kernel(
        "embedding_table_backward",
        [blocks(op.vocabulary, block_rows)?, blocks(channels, block_channels)?, 1],
        BLOCK,
        0,
        &[
            pointer(&outputs[0]),
            pointer(tokens),
            pointer(dx),
            size_argument(tokens.ty.elements())?,
            size_argument(op.vocabulary)?,
            size_argument(channels)?,
            size_argument(block_rows)?,
            size_argument(block_channels)?,
            flag(op.accumulate_table),
        ],
    )?;
    let elements = outputs[1].ty.elements();
    launcher.kernel(
        "embedding_positions_backward",
        [blocks(elements, POSITION_ELEMENTS)?, 1, 1],
        BLOCK,
        0,
        &[
            pointer(&outputs[1]),
            pointer(dx),
            size_argument(tokens.ty.shape.rows())?,
            count(elements),
            flag(op.accumulate_positions),
        ],
    )
}
