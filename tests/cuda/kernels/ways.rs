//! Ways in which a card may compute, on which no result may depend by more than its test allows: an emulated card is told
//! which to go for every case, a real one goes its own.

use std::ffi::CStr;

use device::emulate_way;
use ops::{Activation, Attending, Attention, DType, Linear, Op};

use super::harness::Devices;
use super::numbers::Data;

const SUMS: [&CStr; 2] = [c"nearest", c"truncated"];
const GELU: [&CStr; 3] = [c"unrounded", c"rounded", c"refused"];

/// How products are rounded, in the words of `EMULATED_SUMS` and `EMULATED_GELU`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Way {
    sums: &'static CStr,
    gelu: &'static CStr,
}

impl Way {
    pub(crate) const ALL: [Way; 6] = {
        let mut all = [Way { sums: SUMS[0], gelu: GELU[0] }; 6];
        let mut number = 0;
        while number < all.len() {
            all[number] = Way { sums: SUMS[number % 2], gelu: GELU[number / 2] };
            number += 1;
        }
        all
    };

    /// Those that differ in sums alone.
    pub(crate) const SUMS: [Way; 2] = [Way::ALL[0], Way::ALL[1]];

    /// Whether the library has no epilogue that stores what goes into GELU.
    pub(crate) fn refuses(self) -> bool {
        self.gelu == GELU[2]
    }

    /// What this thread enqueues from now on goes this way, with threads in an order of `EMULATED_ORDER`.
    pub(crate) fn emulate(self, order: u16) {
        emulate_way(order, self.sums, self.gelu);
    }
}

/// Which ways the cases of an operation have gone.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    cases: u16,
    ways: Vec<Way>,
}

impl Tried {
    /// The way of the next case, and the orders of threads that it is launched with, one after the other: all of them at
    /// first, then two of them in turns.
    ///
    /// Six cases in a row go all ways, each six in another order: cases come in loops over flags, and a flag must not always
    /// meet the same way.
    pub(crate) fn next(&mut self) -> (Way, Vec<u16>) {
        let (round, place) = (u32::from(self.cases) / 6, usize::from(self.cases) % 6);
        let mut all = Way::ALL;
        let mut chance = round.wrapping_mul(0x9E37_79B9).wrapping_add(1);
        for i in (1..all.len()).rev() {
            chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            all.swap(i, (chance >> 16) as usize % (i + 1));
        }
        let by_chance = 2 + self.cases;
        let orders = match self.cases % 3 {
            0 if self.cases == 0 => vec![0, 1, by_chance],
            0 => vec![0, 1],
            1 => vec![1, by_chance],
            _ => vec![by_chance, 0],
        };
        self.cases += 1;
        self.ways.push(all[place]);
        (all[place], orders)
    }

    /// Whether the cases of an operation on such types have gone every way that makes a difference to it.
    pub(crate) fn is_complete(&self, op: &str, types: &[DType]) -> bool {
        let is_rounded = types.iter().any(|dtype| matches!(dtype, DType::BF16 | DType::F16));
        let has_products = is_rounded && (op.starts_with("linear") || op.starts_with("attention"));
        let has_gelu = has_products && op.starts_with("linear") && op.ends_with("-gelu");
        let met = |way: &Way| self.ways.contains(way);
        let sums = || SUMS.iter().all(|&sums| self.ways.iter().any(|way| way.sums == sums));
        (!has_gelu || Way::ALL.iter().all(met)) && (!has_products || sums())
    }
}

/// The emulated card makes other bits of the same operands where it goes another way: it has heard of each.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn an_emulated_card_goes_the_way_it_is_told() {
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
        let attention = Op::Attention(Attention { attending: Attending::causal(2) });
        let operands = [operand(&[40, 2048], 1), operand(&[96, 2048], 2), operand(&[96], 3)];
        let qkv = [operand(&[1, 100, 3 * 2 * 64], 4)];
        let mut found: Vec<(Way, Vec<u32>, Vec<u32>)> = Vec::new();
        for way in Way::ALL {
            devices.fix(way);
            let bits = |outputs: Vec<Data>| outputs.iter().flat_map(Data::bits).collect();
            let (linear, attention) =
                (bits(devices.cuda(&linear, &operands)), bits(devices.cuda(&attention, &qkv)));
            for (other, of_linear, of_attention) in &found {
                assert!(linear != *of_linear, "{dtype}: the same of {way:?} and {other:?}");
                let differ = way.sums != other.sums;
                assert_eq!(attention != *of_attention, differ, "{dtype}: attention by {way:?} and {other:?}");
            }
            found.push((way, linear, attention));
        }
    }
}
