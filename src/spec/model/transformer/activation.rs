//! What is between the products of a feed-forward layer: every activation that there is, by itself and as a gate.

use serde::{Serialize, Serializer};

use crate::declare::Words;
use ops::Activation;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MlpActivation {
    /// A function of each element.
    Plain(Activation),
    /// A gate through that function. The first product makes gate and values, so that there are three weights in all.
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

impl Words for MlpActivation {
    const ALL: &'static [MlpActivation] = &ALL;
    const LATER: &'static [&'static str] = &[];

    fn word(self) -> &'static str {
        match self {
            MlpActivation::Plain(function) => function.definition().word,
            MlpActivation::Gate(function) => function.definition().gate,
        }
    }
}

impl Serialize for MlpActivation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
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
    fn each_activation_and_each_gate_has_a_word_of_its_own() {
        let words: BTreeSet<&str> = MlpActivation::ALL.iter().map(|activation| activation.word()).collect();
        assert_eq!(words.len(), 2 * Activation::ALL.len(), "{words:?}");
    }
}
