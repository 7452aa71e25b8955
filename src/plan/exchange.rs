//! Estimates the time of exchanges between ranks.
//!
//! Ranks form rings, and each sends to the next one 2 (n - 1) / n of the bytes of an all-reduce, and half of that in an
//! all-gather or a reduce-scatter. At best that takes `bytes / B`, where B is a rank's rate to others ("bus bandwidth" in
//! <https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md>). In a node, B is the link between cards. Between
//! nodes, there is a ring for each card that the ranks use of a node, and each ring leaves the node at another card. So of k
//! such cards, each sends one byte in k to another node, and B is min(card_link, k * network). Ranks are spread evenly over as few
//! nodes as have enough cards. Latency is not counted.

use super::estimate::{DeviceRates, UnknownRate};
use base::rates::BytesPerSecond;
use device::{Collective, DeviceKind, KnownCard, Phase, Target};
use memory::{Exchanged, StepWork};
use spec::{NodeRates, RunConfig, Update};

/// The node of a known card, from data sheets.
pub fn node_of_data_sheet(card: &KnownCard) -> NodeRates {
    let rate = |giga: f64| BytesPerSecond((giga * 1e9) as u64);
    NodeRates { cards: card.cards(), card_link: card.card_link().map(rate), ..NodeRates::default() }
}

impl DeviceRates {
    /// Estimated milliseconds of the exchanges of a step, hidden by computation or not.
    ///
    /// # Errors
    /// A rate is unknown.
    pub fn exchange_ms(
        &self,
        work: &StepWork,
        config: &RunConfig,
        target: &Target,
    ) -> Result<f64, UnknownRate> {
        if work.exchanges.is_empty() {
            return Ok(0.0);
        }
        Ok(1e3 * work.sent_bytes() as f64 / self.exchange_rate(config.ranks(), target)?)
    }

    /// Seconds of the exchanges that exceed the computation of their phase. If only the last micro-batch exchanges, its
    /// computation alone hides them.
    pub(super) fn exposed_seconds(
        &self,
        work: &StepWork,
        config: &RunConfig,
        target: &Target,
    ) -> Result<f64, UnknownRate> {
        if work.exchanges.is_empty() {
            return Ok(0.0);
        }
        let rate = self.exchange_rate(config.ranks(), target)?;
        let mut exposed = 0.0;
        for phase in Phase::ALL {
            let of_phase = work.exchanges.iter().filter(|exchange| hiding_phase(exchange, config) == phase);
            let (waited, hidden): (Vec<&Exchanged>, Vec<&Exchanged>) =
                of_phase.partition(|exchange| is_waited_for(exchange, config));
            let seconds =
                |of: &[&Exchanged]| of.iter().map(|exchange| exchange.sent_bytes).sum::<u64>() as f64 / rate;
            let in_last = phase == Phase::Backward && !config.shards_gradients();
            let passes = if in_last { config.of_rank(0).micro_batches() } else { 1 };
            let computed = self.computed_seconds(work, Some(phase), config, target)? / passes as f64;
            exposed += seconds(&waited) + (seconds(&hidden) - computed).max(0.0);
        }
        Ok(exposed)
    }

    /// Bytes per second that a rank sends.
    fn exchange_rate(&self, ranks: usize, target: &Target) -> Result<f64, UnknownRate> {
        if target.kind == DeviceKind::Cpu {
            return Err(UnknownRate::OfExchanges);
        }
        let cards = self.node.cards.ok_or(UnknownRate::OfCards)?;
        let link = match self.node.card_link {
            Some(BytesPerSecond(link)) => link as f64,
            None if cards == 1 => f64::INFINITY,
            None => return Err(UnknownRate::OfCardLink),
        };
        if ranks <= cards {
            return Ok(link);
        }
        let BytesPerSecond(network) = self.node.network.ok_or(UnknownRate::OfNetwork { cards })?;
        let used = ranks / ranks.div_ceil(cards);
        Ok(link.min(used as f64 * network as f64))
    }
}

/// The phase whose computation hides an exchange: updates in the backward pass are followed by the rest of that pass.
fn hiding_phase(exchange: &Exchanged, config: &RunConfig) -> Phase {
    match (exchange.phase, config.strategy.update) {
        (Phase::Update, Update::InBackward) => Phase::Backward,
        (phase, _) => phase,
    }
}

/// Whether computation waits for an exchange from its begin on.
fn is_waited_for(exchange: &Exchanged, config: &RunConfig) -> bool {
    match exchange.collective {
        Collective::AllGather => exchange.phase != Phase::Update && config.strategy.parallel.ahead == 0,
        Collective::AllReduce | Collective::ReduceScatter => {
            config.strategy.update == Update::InBackward && exchange.phase == Phase::Backward
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    use device::{Factors, Pool};
    use memory::{Bottleneck, Task};
    use ops::DType;
    use testing::{small, target};

    const MEGA: u64 = 1_000_000;

    fn exchange(collective: Collective, phase: Phase, sent_bytes: u64) -> Exchanged {
        Exchanged { collective, phase, sent_bytes }
    }

    /// Of computation, 10 ms are forward and 40 ms backward.
    fn work(exchanges: &[Exchanged]) -> StepWork {
        let task = |phase, flops| Task {
            operation: "linear",
            phase,
            device: Pool::Device,
            dtype: DType::F32,
            load: Bottleneck::of(flops, 1),
            flops,
            bytes: 1,
        };
        let tasks = vec![task(Phase::Forward, 10 * MEGA), task(Phase::Backward, 40 * MEGA)];
        StepWork { tasks, exchanges: exchanges.to_vec(), ..StepWork::default() }
    }

    /// 1 GB/s between the two cards of a node, 0.2 GB/s of each card to other nodes.
    fn rates() -> DeviceRates {
        let rate = |mega: u64| Some(BytesPerSecond(mega * MEGA));
        DeviceRates {
            products: HashMap::from([(Factors::F32, 1e9)]),
            memory: Some(1e9),
            node: NodeRates {
                cards: Some(2),
                card_link: rate(1000),
                network: rate(200),
                ..NodeRates::default()
            },
            ..DeviceRates::default()
        }
    }

    fn config(ranks: usize) -> RunConfig {
        let mut config = small();
        config.strategy.parallel.data = ranks;
        config.train.batch_size = 2 * ranks;
        config
    }

    fn card() -> Target {
        Target { kind: DeviceKind::Cuda, ..target() }
    }

    #[track_caller]
    fn assert_ms(found: Result<f64, UnknownRate>, ms: f64) {
        assert!(found.is_ok_and(|found| (found - ms).abs() < 1e-6), "{found:?}, not {ms}");
    }

    #[test]
    fn ring_takes_the_rate_of_the_link_or_of_all_network_cards() {
        let work = work(&[exchange(Collective::AllReduce, Phase::Backward, 30 * MEGA)]);
        let ms = |node: NodeRates, ranks| {
            DeviceRates { node, ..rates() }.exchange_ms(&work, &config(ranks), &card())
        };
        let node = rates().node;
        assert_ms(ms(node, 2), 30.0);
        // One of two nodes has a single card in use.
        assert_ms(ms(node, 3), 150.0);
        assert_ms(ms(node, 4), 75.0);
        let fast = NodeRates { network: Some(BytesPerSecond(600 * MEGA)), ..node };
        assert_ms(ms(fast, 8), 30.0);
        let alone = NodeRates { cards: Some(1), card_link: None, ..node };
        assert_ms(ms(alone, 2), 150.0);
    }

    #[test]
    fn step_has_the_exchanges_that_the_computation_of_their_phase_does_not_hide() {
        let ms =
            |exchanges: &[Exchanged], config: &RunConfig| rates().step_ms(&work(exchanges), config, &card());
        let reduce = |bytes| exchange(Collective::AllReduce, Phase::Backward, bytes);
        let gather = exchange(Collective::AllGather, Phase::Forward, 5 * MEGA);
        let mut two = config(2);
        assert_ms(ms(&[reduce(30 * MEGA)], &two), 50.0);
        assert_ms(ms(&[reduce(45 * MEGA), gather], &two), 55.0);
        assert_ms(ms(&[exchange(Collective::AllGather, Phase::Update, 7 * MEGA)], &two), 57.0);
        // Gathered at their use.
        two.strategy.parallel.ahead = 0;
        assert_ms(ms(&[reduce(30 * MEGA), gather], &two), 55.0);
        // Of two micro-batches, the second one has half of the computation.
        two.strategy.accumulate = 2;
        assert_ms(ms(&[reduce(30 * MEGA)], &two), 60.0);
        two.strategy.update = Update::InBackward;
        assert_ms(ms(&[reduce(30 * MEGA)], &two), 80.0);
        // Half of the backward pass of 40 ms hides the gathers of what was updated.
        assert_ms(ms(&[exchange(Collective::AllGather, Phase::Update, 27 * MEGA)], &two), 57.0);
    }

    #[test]
    fn missing_rate_of_exchanges_gives_no_estimate() {
        let work = work(&[exchange(Collective::AllReduce, Phase::Backward, 1)]);
        let unknown = |node: NodeRates, ranks, target: &Target| {
            DeviceRates { node, ..rates() }.step_ms(&work, &config(ranks), target).unwrap_err()
        };
        let node = rates().node;
        assert_eq!(unknown(node, 2, &target()), UnknownRate::OfExchanges);
        assert_eq!(unknown(NodeRates { cards: None, ..node }, 2, &card()), UnknownRate::OfCards);
        assert_eq!(unknown(NodeRates { card_link: None, ..node }, 2, &card()), UnknownRate::OfCardLink);
        let within = NodeRates { network: None, ..node };
        assert_eq!(unknown(within, 3, &card()), UnknownRate::OfNetwork { cards: 2 });
        assert!(DeviceRates { node: within, ..rates() }.step_ms(&work, &config(2), &card()).is_ok());
    }
}
