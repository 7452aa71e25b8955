//! Which strategies run where: the points that `[sweep]` spans.

use spec::{Case, Document, Problem, Setting, WrittenStrategy, combinations};

/// One of the strategies that axes inside a strategy make of it, or the strategy itself.
pub(super) struct Variant<'d> {
    pub(super) label: String,
    pub(super) strategy: &'d WrittenStrategy,
    /// Of the axes inside the strategy.
    pub(super) values: Vec<&'d Setting>,
}

/// A variant at a point of the shared axes.
pub(super) struct Place<'d> {
    pub(super) variant: usize,
    /// Of the shared axes.
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

/// Grid by zips, the last axis fastest and all strategies at each point, less what `exclude` takes away and then
/// with what `include` adds. Fails where a case does nothing, or nothing is left.
pub(super) fn places<'d>(
    document: &'d Document<'_>,
    variants: &[Variant<'d>],
) -> Result<Vec<Place<'d>>, Vec<Problem>> {
    let sweep = &document.sweep;
    let mut used = vec![false; sweep.exclude.len()];
    let mut places = Vec::new();
    for values in shared_values(document) {
        for (index, variant) in variants.iter().enumerate() {
            let mut excluded = false;
            for (case, used) in sweep.exclude.iter().zip(&mut used) {
                if is_like(case, variant, &values) {
                    *used = true;
                    excluded = true;
                }
            }
            if !excluded {
                places.push(Place { variant: index, values: values.clone() });
            }
        }
    }
    let mut problems: Vec<Problem> = Vec::new();
    for (case, _) in sweep.exclude.iter().zip(used).filter(|(_, used)| !used) {
        problems.push(
            Problem::new("this excludes nothing: no point of the sweep is like it")
                .at(case.span)
                .help("give strategies and values that the sweep has"),
        );
    }
    problems.extend(sweep.include.iter().filter_map(|case| include(case, variants, &mut places).err()));
    if !problems.is_empty() {
        return Err(problems);
    }
    if places.is_empty() {
        let mut problem =
            Problem::new("the sweep excludes all of its points").help("remove an [[sweep.exclude]]");
        problem.places.extend(sweep.exclude.iter().map(|case| case.span));
        return Err(problem.into());
    }
    Ok(places)
}

/// The points of the shared axes.
fn shared_values<'d>(document: &'d Document<'_>) -> Vec<Vec<&'d Setting>> {
    let mut points = combinations(&document.sweep.grid);
    for group in &document.sweep.zip {
        let rows = group.first().map_or(0, |axis| axis.values.len());
        let with_row = |point: &[&'d Setting], index: usize| -> Vec<&'d Setting> {
            point.iter().copied().chain(group.iter().map(|axis| &axis.values[index])).collect()
        };
        points = points.iter().flat_map(|point| (0..rows).map(|index| with_row(point, index))).collect();
    }
    points
}

fn is_like(case: &Case, variant: &Variant<'_>, values: &[&Setting]) -> bool {
    let has = |wanted: &Setting| {
        let mut all = values.iter().chain(&variant.values);
        all.any(|value| value.key == wanted.key && value.node.value == wanted.node.value)
    };
    case.selects(&variant.strategy.name, &variant.label) && case.settings.iter().all(has)
}

fn include<'d>(case: &'d Case, variants: &[Variant<'d>], places: &mut Vec<Place<'d>>) -> Result<(), Problem> {
    let before = places.len();
    for (index, variant) in variants.iter().enumerate() {
        if !case.selects(&variant.strategy.name, &variant.label) {
            continue;
        }
        let same = |place: &Place<'_>| {
            place.values.len() == case.settings.len() && is_like(case, variant, &place.values)
        };
        if places.iter().any(|place| place.variant == index && same(place)) {
            return Err(Problem::new(format!("`{}` is at this point of the sweep already", variant.label))
                .at(case.span)
                .help("remove it here"));
        }
        places.push(Place { variant: index, values: case.settings.iter().collect() });
    }
    if places.len() == before {
        return Err(Problem::new("this includes nothing: no strategy has such a name")
            .at(case.span)
            .help("`fp32*` matches all names that begin with fp32"));
    }
    Ok(())
}
