//! `offload`: data that stays in host memory while the device does not use it.

use crate::reader::declare::{InlineTable, Writable, inline_table, key_table};
use crate::reader::forms::Form;
use crate::reader::keys::ValueParser;
use crate::reader::parsers::{Boolean, UsizeRange};
use crate::reader::tree::Value;
use base::units::Bytes;

pub(super) const OFFLOAD: InlineTable<Offload> = inline_table("offload", "`offload`", "optimizer = true");

/// More layers than any model has; keeps sums in range.
pub(super) const AHEAD: UsizeRange = UsizeRange(0..=1 << 24);

key_table! {
    /// Data that stays in host memory while the device does not use it (CPU offload).
    #[derive(Copy, Eq)]
    pub struct Offload: Default {
        /// Keep parameters in host memory: each layer's are prefetched to the device, in forward and again in backward,
        /// and dropped after use. With `optimizer`, this is what FSDP's `CPUOffload` does.
        pub parameters: bool = Boolean, default false;
        /// Keep optimizer states and master weights in host memory, transfer gradients there as they are computed, and
        /// run the optimizer step on the host's processor (ZeRO-Offload).
        pub optimizer: bool = Boolean, default false;
        /// Transfer activations saved for backward to host memory and back: all of them with `true`, or those of at
        /// least this size. PyTorch: `torch.autograd.graph.save_on_cpu`.
        pub activations: ActivationOffload = SpillValue, default ActivationOffload::Nothing;
        /// Whether offloaded data is in pinned memory, so that transfers overlap with compute. False is an error when
        /// nothing is offloaded.
        pub pinned: bool = Boolean, default true;
        /// Prefetch distance in layers: data is transferred to the device this many layers before its use.
        pub ahead: usize = AHEAD, default 1;
    }
}

/// Saved activations that are transferred to host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum ActivationOffload {
    Nothing,
    /// Activations of at least this size.
    From(Bytes),
}

impl Offload {
    /// Whether anything is offloaded.
    pub fn is_any(&self) -> bool {
        let Offload { parameters, optimizer, activations, pinned: _, ahead: _ } = *self;
        parameters || optimizer || activations != ActivationOffload::Nothing
    }
}

/// True, false, or the smallest size in bytes, with its unit.
struct SpillValue;

impl ValueParser for SpillValue {
    type Output = ActivationOffload;

    fn parse(&self, value: &Value) -> Option<ActivationOffload> {
        match value {
            Value::Boolean(false) => Some(ActivationOffload::Nothing),
            Value::Boolean(true) => Some(ActivationOffload::From(Bytes(0))),
            Value::Text(text) => text.parse().ok().map(ActivationOffload::From),
            _ => None,
        }
    }

    fn expected(&self) -> String {
        "true, false, or the size from which a value is offloaded, such as \"64 KiB\"".to_owned()
    }

    fn forms(&self) -> Vec<Form> {
        vec![Form::Boolean, Form::matching(Bytes::pattern())]
    }
}

impl Writable for SpillValue {
    fn text(&self, value: &ActivationOffload) -> String {
        match value {
            ActivationOffload::Nothing => "false".to_owned(),
            ActivationOffload::From(Bytes(0)) => "true".to_owned(),
            ActivationOffload::From(Bytes(bytes)) => format!("\"{bytes} B\""),
        }
    }
}
