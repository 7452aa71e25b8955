//! Charts as data. The page draws them with its library, `svg` draws one as a file.

use serde::Serialize;

/// Colours of series, distinct also for most colour-blind readers and on light and dark ground.
/// The first ones are the roles', in their order.
pub(crate) const PALETTE: [&str; 12] = [
    "#4269d0", "#97bbf5", "#6cc5b0", "#efb118", "#ff725c", "#3ca951", "#9498a0", "#a463f2", "#ff8ab7",
    "#9c6b4e", "#7a8290", "#d9480f",
];

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Chart {
    /// The name for `--svg`, unique within a report.
    pub(crate) name: String,
    /// The point of the sweep; empty if there is one only.
    pub(crate) point: String,
    pub(crate) title: String,
    pub(crate) marks: Marks,
    /// Titles of the axes, with units.
    pub(crate) x: String,
    pub(crate) y: String,
    /// Names of the bars from the top; empty for other charts.
    pub(crate) categories: Vec<String>,
    pub(crate) series: Vec<Series>,
    /// What the chart leaves out; empty if it shows everything.
    pub(crate) note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Marks {
    Points,
    /// Horizontal. A point's `x` is the length of its part of the bar, its `y` the index of the category.
    Bars,
    Lines,
    /// Stacked.
    Areas,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Index in [`PALETTE`].
    pub(crate) color: usize,
    /// Series of bars with the same stack add up; the bars of different stacks stand beside each other.
    pub(crate) stack: String,
    /// Points: joined in steps, as the Pareto front. Bars: outlined, as predictions. Lines: points without a line.
    pub(crate) special: bool,
    pub(crate) points: Vec<Point>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// The lines that pointing shows, the first of which is the label; may be empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) text: Vec<String>,
}

impl Chart {
    /// Whether there is anything to draw.
    pub(crate) fn has_points(&self) -> bool {
        self.series.iter().any(|series| !series.points.is_empty())
    }
}

/// Keeps the first, the last and evenly spaced elements between them; at most `most` of them.
pub(crate) fn thinned<T: Clone>(all: &[T], most: usize) -> Vec<T> {
    if all.len() <= most {
        return all.to_vec();
    }
    (0..most).map(|at| all[at * (all.len() - 1) / (most - 1)].clone()).collect()
}
