//! The activation between the matmuls of a feed-forward layer: each function of `ops`, elementwise or as a gate.

use std::cmp::Ordering;

use crate::reader::declare::KeywordEnum;
use ops::Activation;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MlpActivation {
    /// A function of each element.
    Plain(Activation),
    /// A gated linear unit with that function. The first matmul computes gate and values, so there are three weights in
    /// all.
    Gate(Activation),
}

const ALL: [MlpActivation; 2 * Activation::ALL.len()] = {
    let mut all = [MlpActivation::Plain(Activation::GeluTanh); _];
    let mut index = 0;
    while index < Activation::ALL.len() {
        all[index] = MlpActivation::Plain(Activation::ALL[index]);
        all[Activation::ALL.len() + index] = MlpActivation::Gate(Activation::ALL[index]);
        index += 1;
    }
    all
};

impl KeywordEnum for MlpActivation {
    const ALL: &'static [MlpActivation] = &ALL;

    fn keyword(self) -> &'static str {
        match self {
            MlpActivation::Plain(function) => function.definition().word,
            MlpActivation::Gate(function) => function.definition().gate,
        }
    }
}

impl PartialOrd for MlpActivation {
    fn partial_cmp(&self, other: &MlpActivation) -> Option<Ordering> {
        self.keyword().partial_cmp(other.keyword())
    }
}

impl MlpActivation {
    pub fn is_gate(self) -> bool {
        matches!(self, MlpActivation::Gate(_))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn activations_and_gates_have_distinct_keywords() {
        let words: BTreeSet<&str> =
            MlpActivation::ALL.iter().map(|activation| activation.keyword()).collect();
        assert_eq!(words.len(), 2 * Activation::ALL.len(), "{words:?}");
    }
}
