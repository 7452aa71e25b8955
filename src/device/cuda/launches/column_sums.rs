//! Sums of the columns of a matrix, in two stages.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::DType;

use super::sizes::{BLOCK, blocks, by_dtype, flag, pointer, size, size_argument, vector_len};

/// Rows that a block sums, if the workspace has room for the partial sums of so few.
const ROWS_PER_PARTIAL: usize = 128;

/// Stores the sums of the columns of `matrix`, a tensor of any rank, as f32 at `sums`, or adds them to what is there.
///
/// # Errors
/// Sizes beyond what a grid can have; what the driver says.
pub(super) fn column_sums(
    matrix: &Operand,
    sums: u64,
    accumulate: bool,
    (workspace, bytes): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (rows, columns) = (matrix.ty.shape.rows(), matrix.ty.shape.last());
    let most = bytes as usize / (columns * DType::F32.bytes() as usize);
    let rows_per_partial = if most == 0 { rows } else { ROWS_PER_PARTIAL.max(rows.div_ceil(most)) };
    let partials = rows.div_ceil(rows_per_partial);
    // Such rows are aligned whichever of a tensor's is the first.
    let whole_vectors = columns.is_multiple_of(vector_len(matrix.ty.dtype));
    let (names, lane_columns) = if whole_vectors {
        (
            ["column_sums_wide_f32", "column_sums_wide_bf16", "column_sums_wide_f16"],
            vector_len(matrix.ty.dtype),
        )
    } else {
        (["column_sums_f32", "column_sums_bf16", "column_sums_f16"], 1)
    };
    let alone = partials == 1;
    launcher.kernel(
        by_dtype(matrix.ty.dtype, names)?,
        [blocks(columns, 32 * lane_columns)?, size(partials)?, 1],
        BLOCK,
        0,
        &[
            Argument::Pointer(if alone { sums } else { workspace }),
            pointer(matrix),
            size_argument(rows)?,
            size_argument(columns)?,
            size_argument(rows_per_partial)?,
            flag(alone && accumulate),
        ],
    )?;
    if alone {
        return Ok(());
    }
    let sinks = Sums { dtype: DType::F32, addresses: [sums, 0] };
    sum_partials(sinks, workspace, [partials, columns, columns], accumulate, launcher)
}

/// Where sums go, and what they are stored as.
pub(super) struct Sums {
    pub(super) dtype: DType,
    pub(super) addresses: [u64; 2],
}

/// Stores the sum of `count` rows of partial sums, or adds it: the columns before `split` at the first address, the
/// others at the second. The sizes are `[count, columns, split]`.
///
/// # Errors
/// As `column_sums`.
pub(super) fn sum_partials(
    Sums { dtype, addresses: [first, second] }: Sums,
    partials: u64,
    [count, columns, split]: [usize; 3],
    accumulate: bool,
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    launcher.kernel(
        by_dtype(dtype, ["sum_partials_f32", "sum_partials_bf16", "sum_partials_f16"])?,
        [blocks(columns, 32)?, 1, 1],
        1024,
        0,
        &[
            Argument::Pointer(first),
            Argument::Pointer(second),
            Argument::Pointer(partials),
            size_argument(count)?,
            size_argument(columns)?,
            size_argument(split)?,
            flag(accumulate),
        ],
    )
}
