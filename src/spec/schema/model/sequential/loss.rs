//! `loss`: the loss of the output, a word or a table with the keys of one.

use std::ops::Bound::Included;

use crate::reader::declare::{InlineTable, KeyCodec, KeyTable, inline_table, key_table};
use crate::reader::error::Problem;
use crate::reader::forms::Form;
use crate::reader::keys::{Keys, ValueParser};
use crate::reader::parsers::FloatRange;
use crate::reader::reference::{Accepts, DeclaredKey};
use crate::reader::tree::{Node, Value, quoted};
use crate::reader::write::TableWriter;

/// The loss of a model's output.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum OutputLoss {
    /// Of classes, against their index: the last dimension has a logit for each (PyTorch: `CrossEntropyLoss`).
    CrossEntropy(CrossEntropyLoss),
    /// The mean of squared differences (PyTorch: `MSELoss`).
    SquaredError,
    /// Of a logit for each element, against a probability (PyTorch: `BCEWithLogitsLoss`).
    BinaryCrossEntropy,
    /// The sum of the outputs, without targets (PyTorch: `model(x).sum()`).
    Sum,
}

key_table! {
    /// Cross-entropy of classes (PyTorch: `CrossEntropyLoss`).
    #[derive(Copy)]
    pub struct CrossEntropyLoss: Default {
        /// The share of each target that is spread evenly over all classes.
        pub label_smoothing: f64 = SMOOTHING, default 0.0;
    }
}

const SMOOTHING: FloatRange =
    FloatRange { bounds: (Included(0.0), Included(1.0)), expected: "a share from 0 to 1, such as 0.1" };

const CROSS_ENTROPY: &str = "cross_entropy";

const TABLE: InlineTable<CrossEntropyLoss> =
    inline_table(CROSS_ENTROPY, "`cross_entropy`", "label_smoothing = 0.1");

impl OutputLoss {
    /// Those that a word suffices for.
    const PLAIN: [OutputLoss; 4] = [
        OutputLoss::CrossEntropy(CrossEntropyLoss { label_smoothing: 0.0 }),
        OutputLoss::SquaredError,
        OutputLoss::BinaryCrossEntropy,
        OutputLoss::Sum,
    ];

    fn of_word(text: &str) -> Option<OutputLoss> {
        OutputLoss::PLAIN.into_iter().find(|loss| loss.word() == text)
    }

    pub fn word(&self) -> &'static str {
        match self {
            OutputLoss::CrossEntropy(_) => CROSS_ENTROPY,
            OutputLoss::SquaredError => "squared_error",
            OutputLoss::BinaryCrossEntropy => "binary_cross_entropy",
            OutputLoss::Sum => "sum",
        }
    }
}

impl Default for OutputLoss {
    fn default() -> OutputLoss {
        OutputLoss::CrossEntropy(CrossEntropyLoss::default())
    }
}

/// A word, or a table with the keys of cross-entropy.
pub(super) struct LossCodec;

impl KeyCodec for LossCodec {
    type Output = OutputLoss;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<OutputLoss> {
        let Some(table) = node.table() else { return keys.parse(key, node, &LossWord) };
        let mut loss = keys.table_of(key, node, "model.sequential.loss", "`loss`")?;
        let (reader, name) = (keys.reader(), keys.name(key));
        // A loss with a table of its own that has no keys.
        let without_keys = table.entries.iter().find(|entry| OutputLoss::of_word(&entry.key).is_some());
        if let Some(entry) = without_keys.filter(|entry| entry.key != CROSS_ENTROPY) {
            let message = format!("`{}` of `{name}` has no keys", entry.key);
            let help = format!("write {key} = {}", quoted(&entry.key));
            reader.problem(Problem::new(message).at(entry.key_span).help(help));
            return None;
        }
        let entry = loss.entry(CROSS_ENTROPY);
        let read = entry.and_then(|entry| TABLE.read(&loss, CROSS_ENTROPY, &entry.node));
        // Its only key is "off" or missing.
        if entry.is_none() && (without_keys.is_some() || table.entries.is_empty()) {
            let problem = Problem::new(format!("`{name}` has no loss"));
            reader.problem(problem.at(node.span).help(format!("write {}", self.example(key))));
        }
        loss.finish();
        read.map(OutputLoss::CrossEntropy)
    }

    fn write(&self, key: &str, value: &OutputLoss, lines: &mut TableWriter) {
        match value {
            OutputLoss::CrossEntropy(loss) if *loss != CrossEntropyLoss::default() => {
                let mut table = TableWriter::empty(lines.form());
                TABLE.write(CROSS_ENTROPY, loss, &mut table);
                lines.line(key, &table.inline());
            }
            _ => lines.line(key, &quoted(value.word())),
        }
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = \"cross_entropy\"")
    }

    fn accepts(&self) -> Accepts {
        let key = DeclaredKey::new(CROSS_ENTROPY, CrossEntropyLoss::DOC.trim(), TABLE.accepts(), None);
        Accepts::parsed(&LossWord).or_one_of(vec![key])
    }
}

struct LossWord;

impl ValueParser for LossWord {
    type Output = OutputLoss;

    fn parse(&self, value: &Value) -> Option<OutputLoss> {
        let Value::Text(text) = value else { return None };
        OutputLoss::of_word(text)
    }

    fn expected(&self) -> String {
        let words: Vec<String> = self.keywords().into_iter().map(quoted).collect();
        format!("{} or {{ cross_entropy = {{ label_smoothing = 0.1 }} }}", words.join(", "))
    }

    fn forms(&self) -> Vec<Form> {
        vec![Form::words(&self.keywords())]
    }

    fn keywords(&self) -> Vec<&'static str> {
        OutputLoss::PLAIN.iter().map(OutputLoss::word).collect()
    }
}
