//! What each way to start must cost and save, from the model's dimensions. That it changes no bit is tested next door.

use super::offload::{WEIGHTS, parameters};
use super::strategies::{program, with, work};
use crate::compile::Program;
use crate::device::{Phase, Role, Usage};
use crate::memory::{Cadence, Prediction, predict};
use crate::spec::*;
use crate::testing;
use crate::units::Bytes;

fn started(init: Init, allocator: Allocator) -> RunConfig {
    with(|strategy| (strategy.init, strategy.allocator) = (init, allocator))
}

fn predicted(config: &RunConfig) -> Prediction {
    predict(&program(config), &testing::target(), Cadence::of(config))
}

fn at_start(usage: &Usage, role: Role) -> u64 {
    usage.phase_peak(Phase::Start).live[role]
}

/// Each parameter by itself, as the allocator rounds it.
fn tensors(program: &Program) -> u64 {
    let bytes = |id| program.ty(id).bytes().next_multiple_of(256);
    program.parameters.iter().map(|parameter| bytes(parameter.value)).sum()
}

#[test]
fn a_model_made_on_the_host_is_there_as_a_whole() {
    for allocator in [Allocator::Arena, Allocator::Direct] {
        let config = started(Init::Host, allocator);
        let (program, found) = (program(&config), predicted(&config));
        let whole = tensors(&program);
        assert_eq!(at_start(&found.host, Role::Parameter), whole);
        assert_eq!(found.host.steady_peak().live[Role::Parameter], 0, "it is freed when it has been copied");
        let plain = predicted(&started(Init::Device, allocator));
        for phase in Phase::ALL {
            let live = |found: &Prediction| found.device.phase_peak(phase).live;
            assert_eq!(live(&found), live(&plain), "the device's memory is what it is without");
        }
        assert_eq!(at_start(&plain.host, Role::Parameter), 0);

        let (counts, receipt) = work(&config);
        assert_eq!(counts.bytes_at_start, WEIGHTS);
        assert_eq!((counts.bytes_to_host, counts.bytes_to_device), (0, 0));
        assert!(receipt.starts_with(&format!("{} copied at the start", Bytes(WEIGHTS))), "{receipt}");
    }
}

/// What lives there is made there, whoever says so.
#[test]
fn what_lives_on_the_host_is_not_copied() {
    let mut config = started(Init::Host, Allocator::Arena);
    config.strategy.offload.parameters = true;
    let plain = RunConfig { strategy: Strategy { init: Init::Device, ..config.strategy.clone() }, ..config };
    let made = with(|strategy| (strategy.init, strategy.offload.parameters) = (Init::Host, true));
    assert_eq!(program(&made), program(&plain), "so that the key has no effect");
    assert_eq!(work(&made).0.bytes_at_start, 0);
    let [rounded, _] = parameters(&program(&made));
    assert_eq!(at_start(&predicted(&made).host, Role::Parameter), rounded);
}
