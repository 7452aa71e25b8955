//! The points of a `[sweep]`: combinations of strategies and axis values.

use spec::{Case, Document, Problem, Setting, WrittenStrategy, combinations};

/// A strategy with one combination of the values of its own axes, or a strategy without axes.
pub(super) struct Variant<'d> {
    pub(super) label: String,
    pub(super) strategy: &'d WrittenStrategy,
    /// Values of the strategy's own axes.
    pub(super) values: Vec<&'d Setting>,
}

/// A variant with one combination of the values of the shared axes.
pub(super) struct SweepPoint<'d> {
    pub(super) variant: usize,
    /// Values of the shared axes.
    pub(super) values: Vec<&'d Setting>,
}

/// All variants, in the order of the file.
pub(super) fn variants<'d>(document: &'d Document<'_>) -> Vec<Variant<'d>> {
    let of = |strategy: &'d WrittenStrategy| {
        let variant = move |(label, values)| Variant { label, strategy, values };
        strategy.variants().into_iter().map(variant)
    };
    document.strategies.iter().flat_map(of).collect()
}

/// The points of grid x zips, the last axis fastest, with all strategies at each point; without the excluded points,
/// then with the included ones. Fails if a case has no effect or no point is left.
pub(super) fn sweep_points<'d>(
    document: &'d Document<'_>,
    variants: &[Variant<'d>],
) -> Result<Vec<SweepPoint<'d>>, Vec<Problem>> {
    let sweep = &document.sweep;
    let mut used = vec![false; sweep.exclude.len()];
    let mut points = Vec::new();
    for values in shared_values(document) {
        for (index, variant) in variants.iter().enumerate() {
            let mut excluded = false;
            for (case, used) in sweep.exclude.iter().zip(&mut used) {
                if matches_case(case, variant, &values) {
                    *used = true;
                    excluded = true;
                }
            }
            if !excluded {
                points.push(SweepPoint { variant: index, values: values.clone() });
            }
        }
    }
    let mut problems: Vec<Problem> = Vec::new();
    for (case, _) in sweep.exclude.iter().zip(used).filter(|(_, used)| !used) {
        problems.push(
            Problem::new("this excludes nothing: it matches no point of the sweep")
                .at(case.span)
                .help("use strategies and values of the sweep"),
        );
    }
    problems.extend(sweep.include.iter().filter_map(|case| include(case, variants, &mut points).err()));
    if !problems.is_empty() {
        return Err(problems);
    }
    if points.is_empty() {
        let mut problem =
            Problem::new("the sweep excludes all of its points").help("remove an [[sweep.exclude]]");
        problem.places.extend(sweep.exclude.iter().map(|case| case.span));
        return Err(problem.into());
    }
    Ok(points)
}

/// The points of the shared axes.
fn shared_values<'d>(document: &'d Document<'_>) -> Vec<Vec<&'d Setting>> {
    let mut points = combinations(&document.sweep.grid);
    for group in &document.sweep.zip {
        let rows = group.first().map_or(0, |axis| axis.values.len());
        let with_row = |values: &[&'d Setting], index: usize| -> Vec<&'d Setting> {
            values.iter().copied().chain(group.iter().map(|axis| &axis.values[index])).collect()
        };
        points = points.iter().flat_map(|point| (0..rows).map(|index| with_row(point, index))).collect();
    }
    points
}

fn matches_case(case: &Case, variant: &Variant<'_>, values: &[&Setting]) -> bool {
    let has = |wanted: &Setting| {
        let mut all = values.iter().chain(&variant.values);
        all.any(|value| value.key == wanted.key && value.node.value == wanted.node.value)
    };
    case.selects(&variant.strategy.name, &variant.label) && case.settings.iter().all(has)
}

fn include<'d>(
    case: &'d Case,
    variants: &[Variant<'d>],
    points: &mut Vec<SweepPoint<'d>>,
) -> Result<(), Problem> {
    let before = points.len();
    for (index, variant) in variants.iter().enumerate() {
        if !case.selects(&variant.strategy.name, &variant.label) {
            continue;
        }
        let same = |point: &SweepPoint<'_>| {
            point.values.len() == case.settings.len() && matches_case(case, variant, &point.values)
        };
        if points.iter().any(|point| point.variant == index && same(point)) {
            return Err(Problem::new(format!("the sweep already has `{}` at this point", variant.label))
                .at(case.span)
                .help("remove it here"));
        }
        points.push(SweepPoint { variant: index, values: case.settings.iter().collect() });
    }
    if points.len() == before {
        return Err(Problem::new("this includes nothing: it matches no strategy")
            .at(case.span)
            .help("`fp32*` matches all names that begin with fp32"));
    }
    Ok(())
}
