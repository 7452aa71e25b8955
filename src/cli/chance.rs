//! The entropy of synthetic data: a lower bound of the loss.

use std::collections::BTreeSet;

use spec::RunConfig;

/// `the data's entropy is 1.3863 nats: no mean loss is below it`, if the entropy of any run's data is known.
pub(super) fn least_losses<'a>(runs: impl Iterator<Item = &'a RunConfig>) -> Option<String> {
    let known = runs.filter_map(|run| run.data.data_set().least_loss());
    let all: BTreeSet<String> = known.map(|loss| format!("{loss:.4}")).collect();
    let all: Vec<String> = all.into_iter().collect();
    let (first, last) = (all.first()?, all.last()?);
    let floor = if first == last {
        format!("{first} nats")
    } else {
        format!("{first} to {last} nats, depending on the data")
    };
    Some(format!("the data's entropy is {floor}: no mean loss is below it"))
}
