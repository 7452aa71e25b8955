//! Sums of the columns of a matrix, in two stages.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::DType;

use super::sizes::{BLOCK, blocks, by_dtype, flag, pointer, size, size_argument, vector_len};

/// Rows per block, if the workspace holds that many partial sums.
const ROWS_PER_PARTIAL: usize = 128;

/// Stores the column sums of `matrix`, a tensor of any rank, as f32 at `sums`, or adds them to its contents.
///
/// # Errors
/// Sizes beyond a grid's limits; the driver fails.
pub(super) fn column_sums(
    matrix: &Operand,
    sums: u64,
    accumulate: bool,
    (workspace, bytes): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (rows, columns) = (matrix.ty.shape.rows(), matrix.ty.shape.last());
    let max_partials = bytes as usize / (columns * DType::F32.bytes() as usize);
    let rows_per_partial =
        if max_partials == 0 { rows } else { ROWS_PER_PARTIAL.max(rows.div_ceil(max_partials)) };
    let partials = rows.div_ceil(rows_per_partial);
    // Rows of whole vectors keep the alignment, whichever row of a tensor is the first.
    let whole_vectors = columns.is_multiple_of(vector_len(matrix.ty.dtype));
    let (names, lane_columns) = if whole_vectors {
        (
            ["column_sums_wide_f32", "column_sums_wide_bf16", "column_sums_wide_f16"],
            vector_len(matrix.ty.dtype),
        )
    } else {
        (["column_sums_f32", "column_sums_bf16", "column_sums_f16"], 1)
    };
    let single_stage = partials == 1;
    launcher.kernel(
        by_dtype(matrix.ty.dtype, names)?,
        [blocks(columns, 32 * lane_columns)?, size(partials)?, 1],
        BLOCK,
        0,
        &[
            Argument::Pointer(if single_stage { sums } else { workspace }),
            pointer(matrix),
            size_argument(rows)?,
            size_argument(columns)?,
            size_argument(rows_per_partial)?,
            flag(single_stage && accumulate),
        ],
    )?;
    if single_stage {
        return Ok(());
    }
    let sinks = Sums { dtype: DType::F32, addresses: [sums, 0] };
    sum_partials(sinks, workspace, [partials, columns, columns], accumulate, launcher)
}

/// The outputs of a reduction: type and addresses.
pub(super) struct Sums {
    pub(super) dtype: DType,
    pub(super) addresses: [u64; 2],
}

/// Stores or adds the sum of `count` rows of partial sums: columns before `split` at the first address, the others at
/// the second. The sizes are `[count, columns, split]`.
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
