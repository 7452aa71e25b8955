//! Emulation modes: thread orders and roundings that CUDA leaves open. No result may depend on them by more than its
//! test allows. An emulated card uses a selected mode per case; a real card ignores it.

use std::ffi::CStr;

use device::emulate_way;
use ops::{Activation, Attention, AttentionConfig, DType, Linear, Op};

use super::harness::Devices;
use super::numbers::Data;

const SUMS: [&CStr; 2] = [c"nearest", c"truncated"];
const GELU: [&CStr; 3] = [c"unrounded", c"rounded", c"refused"];

/// The rounding of matmuls and GELU, as values of `EMULATED_SUMS` and `EMULATED_GELU`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mode {
    sums: &'static CStr,
    gelu: &'static CStr,
}

impl Mode {
    pub(crate) const ALL: [Mode; 6] = {
        let mut all = [Mode { sums: SUMS[0], gelu: GELU[0] }; 6];
        let mut number = 0;
        while number < all.len() {
            all[number] = Mode { sums: SUMS[number % 2], gelu: GELU[number / 2] };
            number += 1;
        }
        all
    };

    /// The modes that differ only in sums.
    pub(crate) const SUMS: [Mode; 2] = [Mode::ALL[0], Mode::ALL[1]];

    /// Whether the library rejects epilogues that store the pre-activation of GELU.
    pub(crate) fn rejects_gelu_epilogue(self) -> bool {
        self.gelu == GELU[2]
    }

    /// Sets this mode and a thread order of `EMULATED_ORDER` for all later work of this thread.
    pub(crate) fn set(self, order: u16) {
        emulate_way(order, self.sums, self.gelu);
    }
}

/// The modes that the cases of an operation have used.
#[derive(Debug, Default)]
pub(crate) struct TestedModes {
    cases: u16,
    modes: Vec<Mode>,
}

impl TestedModes {
    /// The mode of the next case, and the thread orders of its launches: all orders for the first case, then two in
    /// turns.
    ///
    /// Each six consecutive cases use all modes, in a varying order: cases come from loops over flags, and a flag must
    /// not always meet the same mode.
    pub(crate) fn next(&mut self) -> (Mode, Vec<u16>) {
        let (cycle, place) = (u32::from(self.cases) / 6, usize::from(self.cases) % 6);
        let mut all = Mode::ALL;
        let mut random = cycle.wrapping_mul(0x9E37_79B9).wrapping_add(1);
        for i in (1..all.len()).rev() {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            all.swap(i, (random >> 16) as usize % (i + 1));
        }
        let random_order = 2 + self.cases;
        let orders = match self.cases % 3 {
            0 if self.cases == 0 => vec![0, 1, random_order],
            0 => vec![0, 1],
            1 => vec![1, random_order],
            _ => vec![random_order, 0],
        };
        self.cases += 1;
        self.modes.push(all[place]);
        (all[place], orders)
    }

    /// Whether the cases of an operation on these types have used every mode that affects it.
    pub(crate) fn is_complete(&self, op: &str, types: &[DType]) -> bool {
        let is_rounded = types.iter().any(|dtype| matches!(dtype, DType::BF16 | DType::F16));
        let has_products = is_rounded && (op.starts_with("linear") || op.starts_with("attention"));
        let has_gelu = has_products && op.starts_with("linear") && op.ends_with("-gelu");
        let was_used = |mode: &Mode| self.modes.contains(mode);
        let sums = || SUMS.iter().all(|&sums| self.modes.iter().any(|mode| mode.sums == sums));
        (!has_gelu || Mode::ALL.iter().all(was_used)) && (!has_products || sums())
    }
}

/// Different modes give different bits, so the emulated card applies each of them.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn emulated_card_applies_the_selected_mode() {
    let mut devices = Devices::new();
    let forced = ["EMULATED_SUMS", "EMULATED_GELU"].iter().any(|name| std::env::var_os(name).is_some());
    if !devices.are_emulated() || forced {
        return;
    }
    for dtype in [DType::BF16, DType::F16] {
        let operand = |dims: &[usize], seed| Data::random(dtype, dims, 1.0, seed);
        let linear = Op::Linear(Linear {
            bias: true,
            activation: Some(Activation::GeluTanh),
            residual: false,
            tf32: false,
        });
        let attention = Op::Attention(Attention { attending: AttentionConfig::causal(2) });
        let operands = [operand(&[40, 2048], 1), operand(&[96, 2048], 2), operand(&[96], 3)];
        let qkv = [operand(&[1, 100, 3 * 2 * 64], 4)];
        let mut found: Vec<(Mode, Vec<u32>, Vec<u32>)> = Vec::new();
        for mode in Mode::ALL {
            devices.fix_mode(mode);
            let bits = |outputs: Vec<Data>| outputs.iter().flat_map(Data::bits).collect();
            let (linear, attention) =
                (bits(devices.cuda(&linear, &operands)), bits(devices.cuda(&attention, &qkv)));
            for (other, of_linear, of_attention) in &found {
                assert!(linear != *of_linear, "{dtype}: the same bits in {mode:?} and {other:?}");
                let differ = mode.sums != other.sums;
                assert_eq!(
                    attention != *of_attention,
                    differ,
                    "{dtype}: attention in {mode:?} and {other:?}"
                );
            }
            found.push((mode, linear, attention));
        }
    }
}
