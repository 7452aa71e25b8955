//! Strategies by the names of the remedies that they combine.

use super::document::{Line, Table};
use crate::failure::Failure;
use crate::fits::Proposal;
use ::plan::{Choice, Combination, Subject, catalogue};
use spec::nearest;

/// The combinations of these names, such as `lora + checkpoint`.
///
/// # Errors
/// A remedy is unknown, or two exclude each other.
pub(super) fn named(names: &[String], has_bf16: bool) -> Result<Vec<Combination>, Failure> {
    let catalogue = catalogue(has_bf16, 1);
    let names: Vec<&str> = names.iter().map(|name| name.trim()).filter(|name| !name.is_empty()).collect();
    let combinations = Failure::collect(names.iter().map(|name| combination(name, &catalogue)))?;
    for (index, combination) in combinations.iter().enumerate() {
        if combinations[..index].contains(combination) {
            return Err(Failure::input(format!("the strategy `{}` is named twice", combination.name())));
        }
    }
    Ok(combinations)
}

fn combination(name: &str, catalogue: &[Choice]) -> Result<Combination, Failure> {
    let known: Vec<&str> = catalogue.iter().map(|choice| choice.name).collect();
    let choice = |name: &str| {
        catalogue.iter().find(|choice| choice.name == name).cloned().ok_or_else(|| {
            let near =
                nearest(name, &known).map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
            Failure::input(format!(
                "there is no remedy `{name}`\n = help: {near}The remedies are {}",
                known.join(", ")
            ))
        })
    };
    let mut choices = Failure::collect(name.split('+').map(|name| choice(name.trim())))?;
    choices.sort_by_key(|choice| choice.subject);
    if let Some(pair) = choices.windows(2).find(|pair| pair[0].subject == pair[1].subject) {
        return Err(Failure::input(format!(
            "`{name}` combines {} and {}, which exclude each other\n = help: name them as two strategies",
            pair[0].name, pair[1].name
        )));
    }
    if choices.first().is_none_or(|choice| choice.subject != Subject::Training) {
        choices.insert(0, catalogue[0].clone());
    }
    Ok(Combination { choices })
}

/// The table of a combination, with as many micro-batches as a batch needs to fit.
pub(super) fn table(Proposal { combination, largest }: &Proposal, batch: usize) -> Table {
    let table = combination.table();
    let lines = table.lines().filter_map(|line| line.split_once(" = "));
    let lines = lines.map(|(key, value)| Line::new(key, value.to_owned()));
    let largest = largest.filter(|largest| (1..batch).contains(largest));
    let number = largest.map(|largest| Line::new("accumulate", batch.div_ceil(largest).to_string()));
    Table::strategy(&combination.name(), lines.chain(number).collect())
}
