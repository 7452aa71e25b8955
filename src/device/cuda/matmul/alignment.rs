//! The alignment of a matmul's operands. By default the library assumes maximal alignment, and may recommend algorithms
//! whose vector loads would be misaligned.
//!
//! The alignment of a matrix is that of all its rows. So it does not depend on the row at which an operand begins: a
//! slice of rows, or an output that overwrites one, gets the same algorithm and the same bits. Nothing is lost, because
//! an algorithm must load every row.

use std::fmt;

use super::{Epilogue, Matmul, Matrix};
use crate::choice::ALIGNMENT;

/// The alignments of a matmul's operands in bytes: powers of two, at most `ALIGNMENT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Alignment {
    pub(super) left: u64,
    pub(super) right: u64,
    /// Of the output and the addend.
    pub(super) output: u64,
    /// Of the epilogue's operands.
    pub(super) epilogue: u64,
}

impl Alignment {
    pub(super) fn of(matmul: &Matmul) -> Alignment {
        let &Matmul { rows, columns, inner, left, right, output, .. } = matmul;
        let row = |matrix: Matrix, length: usize| length as u64 * matrix.dtype.bytes();
        let output_row = row(output, columns);
        let added = matmul.added.map_or(output.address, |added| added.address);
        Alignment {
            left: common_alignment([left.address, row(left, if left.transposed { rows } else { inner })]),
            right: common_alignment([
                right.address,
                row(right, if right.transposed { inner } else { columns }),
            ]),
            output: common_alignment([output.address, added, output_row]),
            epilogue: match matmul.epilogue {
                Epilogue::None => ALIGNMENT,
                Epilogue::Bias(vector) | Epilogue::BiasGradient(vector) => common_alignment([vector]),
                Epilogue::GeluBias { bias, before } => {
                    common_alignment([before, bias.unwrap_or(before), output_row])
                }
                Epilogue::GeluSlope { before } => common_alignment([before, output_row]),
            },
        }
    }
}

/// The largest power of two that divides all addresses and row sizes, at most `ALIGNMENT`.
fn common_alignment<const N: usize>(bytes: [u64; N]) -> u64 {
    let bits = bytes.into_iter().fold(ALIGNMENT, |bits, bytes| bits | bytes);
    1 << bits.trailing_zeros()
}

impl fmt::Display for Alignment {
    /// `left 2, output 64`: the alignments below `ALIGNMENT`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Alignment { left, right, output, epilogue } = *self;
        let all = [("left", left), ("right", right), ("output", output), ("epilogue", epilogue)];
        let reduced = all.into_iter().filter(|(_, bytes)| *bytes < ALIGNMENT);
        let reduced: Vec<String> = reduced.map(|(operand, bytes)| format!("{operand} {bytes}")).collect();
        f.write_str(&reduced.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_alignment_is_the_smallest() {
        for (addresses, bytes) in
            [([0, 0], 256), ([512, 4096], 256), ([198, 512], 2), ([768, 1408], 128), ([72, 80], 8)]
        {
            assert_eq!(common_alignment(addresses), bytes, "{addresses:?}");
        }
    }

    #[test]
    fn display_lists_reduced_alignments() {
        let aligned = Alignment { left: 256, right: 256, output: 256, epilogue: 256 };
        assert_eq!(aligned.to_string(), "");
        assert_eq!(Alignment { left: 2, output: 64, ..aligned }.to_string(), "left 2, output 64");
    }
}
