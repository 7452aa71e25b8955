//! `measure.repeats`: how many times each run is measured, each time in its own process.

use std::ops::Bound::Included;

use crate::reader::declare::{KeyTable, key_table};
use crate::reader::error::Problem;
use crate::reader::forms::Form;
use crate::reader::keys::{Keys, ValueParser};
use crate::reader::parsers::{FloatRange, UsizeRange};
use crate::reader::reference::{Accepts, DeclaredKey};
use crate::reader::tree::Value;
use base::statistics;

/// The number of measurements of each run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Repeats {
    Times(usize),
    /// Until the ratio of its speed to the baseline's is known with the requested precision.
    Until(UntilPrecise),
}

key_table! {
    /// Repeats until the speed ratio to the baseline has the requested precision.
    #[derive(Copy)]
    pub struct UntilPrecise {
        /// Half the width of the confidence interval of the speed ratio to the baseline, relative to the ratio.
        pub until: f64 = WIDTH;
        /// Largest number of repeats.
        pub most: usize = MOST, default 20;
    }
}

const TIMES: UsizeRange = UsizeRange(1..=1000);
/// Fewer repeats never reach the precision.
const MOST: UsizeRange = UsizeRange(8..=1000);
const WIDTH: FloatRange =
    FloatRange { bounds: (Included(0.001), Included(0.5)), expected: "a share from 0.001 to 0.5" };

impl Repeats {
    /// The largest number of repeats.
    pub fn most(self) -> usize {
        match self {
            Repeats::Times(times) => times,
            Repeats::Until(UntilPrecise { most, .. }) => most,
        }
    }

    /// The numbers of rounds after which the precision is checked.
    pub fn looks(self) -> Vec<usize> {
        match self {
            Repeats::Times(times) => vec![times],
            Repeats::Until(UntilPrecise { most, .. }) => statistics::looks(most),
        }
    }

    pub(super) fn read<'a>(keys: &mut Keys<'a>) -> Option<Repeats> {
        let once = Some(Repeats::Times(1));
        let Some(entry) = keys.entry("repeats") else { return once };
        if entry.node.table().is_none() {
            return keys.parse("repeats", &entry.node, &RepeatsValue);
        }
        let mut table = keys.table_of("repeats", &entry.node, "measure.repeats", "`measure.repeats`")?;
        if table.entry("until").is_none() {
            let problem =
                Problem::new("`measure.repeats.until` is missing: it sets the precision of the speed ratio");
            let help = "add until = 0.02: half the confidence interval of the speed ratio to the baseline, over the ratio";
            keys.reader().problem(problem.at(entry.span()).help(help));
        }
        let until = UntilPrecise::read(&mut table);
        table.finish();
        until.map(Repeats::Until)
    }
}

/// `measure.repeats` is read by hand: a number or a table.
pub(super) fn reference() -> DeclaredKey {
    let doc = "Measurements of each run, each in its own process; or until the speed ratio to the baseline is precise enough.";
    DeclaredKey::new(
        "repeats",
        doc,
        Accepts::table::<UntilPrecise>().or(&TIMES.expected(), TIMES.forms()),
        Some("`1`"),
    )
}

struct RepeatsValue;

impl ValueParser for RepeatsValue {
    type Output = Repeats;

    fn parse(&self, value: &Value) -> Option<Repeats> {
        TIMES.parse(value).map(Repeats::Times)
    }

    fn expected(&self) -> String {
        format!("{}, or {{ until = 0.02, most = 20 }}", TIMES.expected())
    }

    fn forms(&self) -> Vec<Form> {
        TIMES.forms()
    }
}
