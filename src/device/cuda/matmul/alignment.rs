//! The alignment of a matmul's operands. By default the library assumes maximal alignment, and may recommend algorithms
//! whose vector loads would be misaligned.

use std::fmt;

use super::{Epilogue, Matmul};
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
        let output = matmul.output.address;
        Alignment {
            left: common_alignment([matmul.left.address]),
            right: common_alignment([matmul.right.address]),
            output: common_alignment([output, matmul.added.map_or(output, |added| added.address)]),
            epilogue: match matmul.epilogue {
                Epilogue::None => ALIGNMENT,
                Epilogue::Bias(vector) | Epilogue::BiasGradient(vector) => common_alignment([vector]),
                Epilogue::GeluBias { bias, before } => common_alignment([before, bias.unwrap_or(before)]),
                Epilogue::GeluSlope { before } => common_alignment([before]),
            },
        }
    }
}

/// The largest common alignment of all addresses.
fn common_alignment<const N: usize>(addresses: [u64; N]) -> u64 {
    let bits = addresses.into_iter().fold(ALIGNMENT, |bits, address| bits | address);
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
    fn common_alignment_is_the_smallest_of_all_addresses() {
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
