//! `offload`: what waits in the host's memory while the device has no use for it.

use serde::Serialize;

use crate::declare::{Inline, Writable, inline, section};
use crate::kinds::{Count, Flag};
use crate::reader::Kind;
use crate::tree::Value;
use base::units::Bytes;

pub(super) const OFFLOAD: Inline<Offload> = inline("offload", "`offload`", "optimizer = true");

/// No model has as many layers; keeps sums in range.
const AHEAD: Count = Count(0..=1 << 24);

section! {
    #[derive(Copy, Eq)]
    pub struct Offload: Default {
        /// Brought a layer ahead of its use and dropped after it, in forward and again in backward.
        pub parameters: bool = Flag, default false;
        /// States and master copies, and gradients as they are made; the host's processor applies them.
        pub optimizer: bool = Flag, default false;
        /// What backward needs of the forward pass.
        pub activations: Spill = SizeOrFlag, default Spill::Nothing;
        /// Whether what is on the host lies in memory that copies reach while others compute.
        pub pinned: bool = Flag, default true;
        /// How many layers before the one that needs it something is brought.
        pub ahead: usize = AHEAD, default 1;
    }
}

/// Which of the values that backward needs leave the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Spill {
    Nothing,
    /// Those of at least so many bytes.
    From(Bytes),
}

impl Offload {
    /// Whether anything is.
    pub fn is_any(&self) -> bool {
        let Offload { parameters, optimizer, activations, pinned: _, ahead: _ } = *self;
        parameters || optimizer || activations != Spill::Nothing
    }
}

/// A size in bytes with its unit, or whether at all.
struct SizeOrFlag;

impl Kind for SizeOrFlag {
    type Output = Spill;

    fn parse(&self, value: &Value) -> Option<Spill> {
        match value {
            Value::Boolean(false) => Some(Spill::Nothing),
            Value::Boolean(true) => Some(Spill::From(Bytes(0))),
            Value::Text(text) => text.parse().ok().map(Spill::From),
            _ => None,
        }
    }

    fn expected(&self) -> String {
        "true, false, or the size from which a value is offloaded, such as \"64 KiB\"".to_owned()
    }
}

impl Writable for SizeOrFlag {
    fn text(&self, value: &Spill) -> String {
        match value {
            Spill::Nothing => "false".to_owned(),
            Spill::From(Bytes(0)) => "true".to_owned(),
            Spill::From(Bytes(bytes)) => format!("\"{bytes} B\""),
        }
    }
}
