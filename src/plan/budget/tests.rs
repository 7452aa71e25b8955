use proptest::prelude::*;

use super::super::{Compiler, compile};
use super::candidates::evaluate;
use super::*;
use compile::{RecomputePolicy, blocks};
use graph::ScopeId;
use memory::{RunSchedule, predict};
use spec::{Precision, Strategy};
use testing::{any_config, any_target, full, random_cases, reshaped, small, target, tenth};

/// Every choice of scopes: of each block nothing, its attention, its feed-forward, both, or all of it together.
fn every_choice_of_scopes(graphs: &Graphs) -> Vec<RecomputePlan> {
    let scopes = &graphs.full.scopes;
    let parts = |block: usize| -> Vec<usize> {
        (0..scopes.len()).filter(|&part| scopes[part].parent == Some(ScopeId(block as u32))).collect()
    };
    let mut all = vec![RecomputePlan::none(scopes.len())];
    for block in blocks(scopes) {
        let [attention, mlp] = parts(block)[..] else { panic!("a block of a transformer has two parts") };
        let choices = [&[][..], &[attention], &[mlp], &[attention, mlp], &[block]];
        let with = |recompute_plan: RecomputePlan| {
            choices.map(|scopes| {
                let mut recompute_plan = recompute_plan.clone();
                scopes.iter().for_each(|&scope| recompute_plan.set(scope, scope, RecomputePolicy::All));
                recompute_plan
            })
        };
        all = all.into_iter().flat_map(with).collect();
    }
    all
}

fn with_budget(config: &RunConfig, budget: Budget) -> RunConfig {
    let mut config = config.clone();
    config.strategy.recompute = Recompute::Budget(budget);
    config
}

/// What the device's pool takes in a run.
fn peak(compiler: &mut Compiler, config: &RunConfig, target: &Target) -> u64 {
    let program = &compiler.compile(config).unwrap().program;
    predict(program, &target.boundless(), RunSchedule::of(config)).device.reserved_peak
}

/// Of four layers there are 625 choices of scopes.
fn any_layers() -> impl proptest::strategy::Strategy<Value = usize> {
    let few = if full() { 1 } else { 4 };
    prop_oneof![few => Just(2usize), few => Just(3), 1 => Just(4)]
}

proptest! {
    #![proptest_config(random_cases(tenth(24)))]

    /// Of all choices of scopes that fit, none costs less by more than a twentieth.
    #[test]
    fn no_choice_of_scopes_that_fits_is_much_cheaper(
        config in any_config(), layers in any_layers(), wide in 1..=4usize, target in any_target(),
    ) {
        let mut config = reshaped(config, |model| (model.layers, model.d_model) = (layers, model.heads * 16 * wide));
        let Strategy { accumulate, precision, loss_chunks, gradients, allocator, evaluation_pass, .. } = config.strategy;
        // It needs a loss scale.
        prop_assume!(precision != Precision::Fp16);
        config.strategy =
            Strategy { accumulate, precision, loss_chunks, gradients, allocator, evaluation_pass, ..Strategy::default() };
        let graphs = Graphs::of(&config);
        let frontier = ParetoFront::of(&graphs, &config, &target).unwrap();
        let all = evaluate(&graphs, &config, &target, every_choice_of_scopes(&graphs)).unwrap();
        for choice in &all {
            let (picked, unmet) = frontier.pick(Budget::Bytes(Bytes(choice.peak)), &target);
            prop_assert_eq!(unmet, None, "{:?}", choice);
            prop_assert!(
                picked.cost <= 1.05 * choice.cost,
                "{:?} is cheaper than {:?}: {} to {}", choice.recompute_plan, picked.recompute_plan, choice.cost, picked.cost
            );
        }
    }

    /// What is compiled for a budget takes no more than it, and no more than what is compiled for a larger one.
    #[test]
    fn the_peak_never_rises_when_the_budget_falls(config in any_config(), target in any_target()) {
        let graphs = Graphs::of(&config);
        let frontier = ParetoFront::of(&graphs, &config, &target).unwrap();
        let [first, .., last] = frontier.choices() else { return Ok(()) };
        let mut compiler = Compiler::new(&target);
        let mut before = u64::MAX;
        for share_of_8 in (0..=8).rev() {
            let budget = last.peak + share_of_8 * (first.peak - last.peak) / 8;
            let share = Budget::Share(budget as f64 / frontier.plain as f64);
            let less = target.clone().with_memory(Bytes(budget + target.context.0));
            let found = peak(&mut compiler, &with_budget(&config, Budget::Bytes(Bytes(budget))), &target);
            let shared = peak(&mut compiler, &with_budget(&config, share), &target);
            // It searches again for each amount of memory.
            let limited = match full() || share_of_8 % 4 == 0 {
                true => peak(&mut Compiler::new(&less), &with_budget(&config, Budget::Memory), &less),
                false => found,
            };
            prop_assert!(found <= budget && found <= before, "{found} bytes of {budget}, {before} before");
            prop_assert_eq!([shared, limited], [found; 2]);
            before = found;
        }
        // What is named instead is met. It is rounded up, so that a cheaper choice may meet it too.
        for too_little in [Budget::Bytes(Bytes(last.peak - 1)), Budget::Share(1e-6)] {
            let smallest = frontier.pick(too_little, &target).1.unwrap().smallest;
            let (picked, unmet) = frontier.pick(smallest, &target);
            prop_assert_eq!(unmet, None);
            prop_assert!(picked.peak - last.peak <= frontier.plain / 1000 + 1, "{smallest:?}: {picked:?}, not {last:?}");
        }
    }
}

/// Of a run without a key there is nothing to save: the first choice is what the run is without one.
#[test]
fn a_budget_of_all_computes_nothing_again() {
    let (config, target) = (small(), target());
    for budget in [Budget::Share(1.0), Budget::Memory] {
        assert_eq!(compile(&with_budget(&config, budget), &target), compile(&config, &target));
    }
}

/// A share that is named is met when it is said, whatever its decimals are in binary.
#[test]
fn the_smallest_share_is_met() {
    let choice =
        |cost: f64, pages: u64| Choice { recompute_plan: RecomputePlan::none(0), cost, peak: pages << 21 };
    for pages in 1..100 {
        let frontier = ParetoFront { choices: vec![choice(0.0, 100), choice(1.0, pages)], plain: 100 << 21 };
        let (_, unmet) = frontier.pick(Budget::Share(1e-6), &target());
        assert_eq!(frontier.pick(unmet.unwrap().smallest, &target()).1, None, "{pages}");
    }
}

/// Many budgets of one run are looked for at once, by threads that share their work.
#[test]
fn nobody_waits_for_another_forever() {
    let (config, target) = (small(), target());
    let budgets: Vec<RunConfig> =
        (1..=32).map(|share| with_budget(&config, Budget::Share(f64::from(share) / 32.0))).collect();
    for _ in 0..4 {
        let frontiers = Arc::new(ParetoFronts::default());
        let programs = base::parallel::map(budgets.clone(), |config| {
            Compiler::sharing(&target, Arc::clone(&frontiers)).compile(&config).is_ok()
        });
        assert_eq!(programs, [true; 32]);
    }
}
