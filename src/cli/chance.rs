//! The entropy of synthetic data: a lower bound of the loss.

use std::collections::BTreeSet;

use spec::RunConfig;

/// `on average, no loss is below 1.3863: so much of what comes next is chance, in nats`, if that is known of the data of any of
/// these runs.
pub(super) fn least_losses<'a>(runs: impl Iterator<Item = &'a RunConfig>) -> Option<String> {
    let known = runs.filter_map(|run| run.data.data_set().least_loss());
    let all: BTreeSet<String> = known.map(|loss| format!("{loss:.4}")).collect();
    let all: Vec<String> = all.into_iter().collect();
    let (first, last) = (all.first()?, all.last()?);
    let floor = if first == last { first.clone() } else { format!("{first} to {last}, by its data") };
    Some(format!("the data's entropy is {floor} nats: no mean loss is below it"))
}
