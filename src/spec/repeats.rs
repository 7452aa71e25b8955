//! `measure.repeats`: how often each run is measured, in processes of its own.

use super::declare::{Section, section};
use super::error::Problem;
use super::kinds::{Count, Number};
use super::reader::{Keys, Kind};
use super::tree::Value;
use base::statistics;

/// How often each run is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Repeats {
    Times(usize),
    /// Until it is known well how fast it is beside the baseline.
    Until(UntilKnown),
}

section! {
    #[derive(Copy)]
    pub struct UntilKnown {
        /// Half the width of the interval of the ratio, over the ratio.
        pub until: f64 = WIDTH;
        pub most: usize = MOST, default 20;
    }
}

const TIMES: Count = Count(1..=1000);
/// Fewer are never enough to know anything well.
const MOST: Count = Count(8..=1000);
const WIDTH: Number =
    Number { holds: |share| (0.001..=0.5).contains(&share), expected: "a share from 0.001 to 0.5" };

impl Repeats {
    /// How many there may be.
    pub fn most(self) -> usize {
        match self {
            Repeats::Times(times) => times,
            Repeats::Until(UntilKnown { most, .. }) => most,
        }
    }

    /// After how many rounds it is looked at whether there are more.
    pub fn looks(self) -> Vec<usize> {
        match self {
            Repeats::Times(times) => vec![times],
            Repeats::Until(UntilKnown { most, .. }) => statistics::looks(most),
        }
    }

    pub(super) fn read<'a>(keys: &mut Keys<'a>) -> Option<Repeats> {
        let once = Some(Repeats::Times(1));
        let Some(entry) = keys.entry("repeats") else { return once };
        if entry.node.table().is_none() {
            return keys.parse(entry, &TimesOrTable);
        }
        let mut table = keys.table_of(entry, "measure.repeats", "`measure.repeats`")?;
        if table.entry("until").is_none() {
            let problem =
                Problem::new("`measure.repeats.until` is missing: how well is a speed to be known?");
            let help = "add until = 0.02: half the interval of its ratio to the baseline's, over the ratio";
            keys.reader().problem(problem.at(entry.span()).help(help));
        }
        let until = UntilKnown::read(&mut table);
        table.finish();
        until.map(Repeats::Until)
    }
}

struct TimesOrTable;

impl Kind for TimesOrTable {
    type Output = Repeats;

    fn parse(&self, value: &Value) -> Option<Repeats> {
        TIMES.parse(value).map(Repeats::Times)
    }

    fn expected(&self) -> String {
        format!("{}, or {{ until = 0.02, most = 20 }}", TIMES.expected())
    }
}
