//! `evaluation.collect`: a keyword, or a table with the place and the form of the collected outputs.

use crate::reader::declare::{InlineTable, KeyCodec, Writable as _, inline_table, key_table, keywords};
use crate::reader::keys::{Keys, ValueParser as _};
use crate::reader::parsers::{Boolean, Keyword, keyword};
use crate::reader::reference::Accepts;
use crate::reader::tree::Node;
use crate::reader::write::TableWriter;

key_table! {
    /// Outputs that an evaluation gathers before a metric is computed from all of them. They are detached, and freed at
    /// the end of the evaluation.
    #[derive(Copy, Eq)]
    pub struct Collect {
        /// "logits": the input of each loss, as Trainer gathers it for `compute_metrics`. "loss": the loss of each forward
        /// pass (Trainer: `prediction_loss_only`).
        pub what: CollectedOutput = WHAT;
        /// Where they stay until the end of the evaluation: on the device, or in host memory, to which each forward pass
        /// copies its own (`.cpu()`; Trainer: `eval_accumulation_steps = 1`).
        pub to: CollectedIn = keyword(), default CollectedIn::Device;
        /// Whether they are concatenated after each forward pass, as Trainer does (`eval_do_concat_batches`): old and new
        /// tensor are live together. Otherwise they stay a list of tensors.
        pub concatenate: bool = Boolean, default false;
    }
}

keywords! {
    /// What an evaluation collects.
    pub enum CollectedOutput {
        Logits = "logits",
        Loss = "loss",
    }
}

keywords! {
    /// Where collected outputs stay.
    pub enum CollectedIn {
        /// Where they are computed: in device memory, unless their layer is placed on the host.
        Device = "device",
        /// In pageable host memory.
        Host = "host",
    }
}

impl Collect {
    /// The choices that the keyword alone stands for: a list where the outputs are computed.
    fn short(what: CollectedOutput) -> Collect {
        Collect { what, to: CollectedIn::Device, concatenate: false }
    }
}

/// A keyword, or a table with more choices.
pub(super) struct CollectCodec;

const WHAT: Keyword<CollectedOutput> = keyword();

const TABLE: InlineTable<Collect> =
    inline_table("evaluation.collect", "`evaluation.collect`", "what = \"logits\", to = \"host\"");

impl KeyCodec for CollectCodec {
    type Output = Collect;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<Collect> {
        if node.table().is_some() {
            return TABLE.read(keys, key, node);
        }
        let read = keys.parse(key, node, &WHAT).map(Collect::short);
        if read.is_none() {
            keys.reader().advise(&format!("use {}, or {}", WHAT.expected(), self.example(key)));
        }
        read
    }

    fn write(&self, key: &str, value: &Collect, lines: &mut TableWriter) {
        if *value == Collect::short(value.what) {
            lines.line(key, &WHAT.text(&value.what));
        } else {
            TABLE.write(key, value, lines);
        }
    }

    fn example(&self, key: &str) -> String {
        TABLE.example(key)
    }

    fn accepts(&self) -> Accepts {
        TABLE.accepts().or(&WHAT.expected(), WHAT.forms())
    }
}
