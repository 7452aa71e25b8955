//! Where a product's operands begin. The library takes them to be as aligned as can be unless it is told, and then has
//! algorithms that read what is not there to be read in one go.

use std::fmt;

use super::{Epilogue, Product};
use crate::choice::ALIGNMENT;

/// What the addresses of a product's operands are multiples of, in bytes: each a power of two, `ALIGNMENT` at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Alignment {
    pub(super) left: u64,
    pub(super) right: u64,
    /// Of the output, and of what is added.
    pub(super) output: u64,
    /// Of what the epilogue reads and writes.
    pub(super) epilogue: u64,
}

impl Alignment {
    pub(super) fn of(product: &Product) -> Alignment {
        let output = product.output.address;
        Alignment {
            left: of_all([product.left.address]),
            right: of_all([product.right.address]),
            output: of_all([output, product.added.map_or(output, |added| added.address)]),
            epilogue: match product.epilogue {
                Epilogue::None => ALIGNMENT,
                Epilogue::Bias(vector) | Epilogue::BiasGradient(vector) => of_all([vector]),
                Epilogue::GeluBias { bias, before } => of_all([before, bias.unwrap_or(before)]),
                Epilogue::GeluSlope { before } => of_all([before]),
            },
        }
    }
}

/// The largest that all addresses are multiples of.
fn of_all<const N: usize>(addresses: [u64; N]) -> u64 {
    let bits = addresses.into_iter().fold(ALIGNMENT, |bits, address| bits | address);
    1 << bits.trailing_zeros()
}

impl fmt::Display for Alignment {
    /// `left 2, output 64`: what is less than it can be.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Alignment { left, right, output, epilogue } = *self;
        let all = [("left", left), ("right", right), ("output", output), ("epilogue", epilogue)];
        let less = all.into_iter().filter(|(_, bytes)| *bytes < ALIGNMENT);
        let less: Vec<String> = less.map(|(operand, bytes)| format!("{operand} {bytes}")).collect();
        f.write_str(&less.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_multiples_of_powers_of_two() {
        for (addresses, bytes) in
            [([0, 0], 256), ([512, 4096], 256), ([198, 512], 2), ([768, 1408], 128), ([72, 80], 8)]
        {
            assert_eq!(of_all(addresses), bytes, "{addresses:?}");
        }
    }

    #[test]
    fn what_is_less_aligned_than_it_can_be_is_told() {
        let aligned = Alignment { left: 256, right: 256, output: 256, epilogue: 256 };
        assert_eq!(aligned.to_string(), "");
        assert_eq!(Alignment { left: 2, output: 64, ..aligned }.to_string(), "left 2, output 64");
    }
}
