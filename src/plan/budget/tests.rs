use proptest::prelude::*;

use super::super::{Compiler, compile};
use super::candidates::evaluate;
use super::*;
use compile::{RecomputePolicy, blocks, rank_graphs};
use graph::ScopeId;
use memory::{RunSchedule, predict};
use spec::{Precision, Strategy};
use testing::{any_config, any_target, full, random_cases, reshaped, small, target, tenth};

/// Every choice of scopes: each block recomputes nothing, its attention, its feed-forward, both, or all of it as one
/// region.
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

/// Peak reserved bytes of the device pool in a run.
fn peak(compiler: &mut Compiler, config: &RunConfig, target: &Target) -> u64 {
    let program = &compiler.compile(config).unwrap().program;
    predict(program, &target.boundless(), RunSchedule::of(config)).device.reserved_peak
}

/// Four layers have 625 choices of scopes.
fn any_layers() -> impl proptest::strategy::Strategy<Value = usize> {
    let few = if full() { 1 } else { 4 };
    prop_oneof![few => Just(2usize), few => Just(3), 1 => Just(4)]
}

proptest! {
    #![proptest_config(random_cases(tenth(24)))]

    /// The selected plan costs at most 5 % more than any choice of scopes that fits.
    #[test]
    fn selected_plan_is_near_the_optimum_over_scopes(
        config in any_config(), layers in any_layers(), wide in 1..=4usize, target in any_target(),
    ) {
        prop_assume!(config.model.transformer().is_some());
        let mut config = reshaped(config, |model| (model.layers, model.d_model) = (layers, model.heads * 16 * wide));
        let Strategy { accumulate, precision, loss_chunks, gradients, allocator, evaluation_pass, .. } = config.strategy;
        // fp16 requires a loss scale.
        prop_assume!(precision != Precision::Fp16);
        config.strategy =
            Strategy { accumulate, precision, loss_chunks, gradients, allocator, evaluation_pass, ..Strategy::default() };
        let graphs = rank_graphs(&config, &target);
        let front = ParetoFront::of(&graphs, &config, &target).unwrap();
        let all = evaluate(&graphs, &config, &target, every_choice_of_scopes(&graphs)).unwrap();
        for choice in &all {
            let (picked, infeasible) = front.select(Budget::Bytes(Bytes(choice.peak)), &target);
            prop_assert_eq!(infeasible, None, "{:?}", choice);
            prop_assert!(
                picked.cost <= 1.05 * choice.cost,
                "{:?} is cheaper than {:?}: {} to {}", choice.recompute_plan, picked.recompute_plan, choice.cost, picked.cost
            );
        }
    }

    /// The peak is within the budget and not above that of a larger budget.
    #[test]
    fn peak_never_rises_when_the_budget_falls(config in any_config(), target in any_target()) {
        let graphs = rank_graphs(&config, &target);
        let front = ParetoFront::of(&graphs, &config, &target).unwrap();
        let [first, .., last] = &front.choices[..] else { return Ok(()) };
        let mut compiler = Compiler::new(&target);
        let mut before = u64::MAX;
        for share_of_8 in (0..=8).rev() {
            let budget = last.peak + share_of_8 * (first.peak - last.peak) / 8;
            let share = Budget::Share(budget as f64 / front.plain_peak as f64);
            let less = target.clone().with_memory(Bytes(budget + target.of_rank(config.ranks()).context.0));
            let found = peak(&mut compiler, &with_budget(&config, Budget::Bytes(Bytes(budget))), &target);
            let shared = peak(&mut compiler, &with_budget(&config, share), &target);
            // Each amount of memory is searched again.
            let limited = match full() || share_of_8 % 4 == 0 {
                true => peak(&mut Compiler::new(&less), &with_budget(&config, Budget::Memory), &less),
                false => found,
            };
            prop_assert!(found <= budget && found <= before, "{found} bytes of {budget}, {before} before");
            prop_assert_eq!([shared, limited], [found; 2]);
            before = found;
        }
        // The suggested budget is feasible. It is rounded up, so that a cheaper choice may meet it, too.
        for too_little in [Budget::Bytes(Bytes(last.peak - 1)), Budget::Share(1e-6)] {
            let smallest = front.select(too_little, &target).1.unwrap().smallest;
            let (picked, infeasible) = front.select(smallest, &target);
            prop_assert_eq!(infeasible, None);
            prop_assert!(picked.peak - last.peak <= front.plain_peak / 1000 + 1, "{smallest:?}: {picked:?}, not {last:?}");
        }
    }
}

/// With a sufficient budget, the plan is that of the run without a recompute key.
#[test]
fn sufficient_budget_recomputes_nothing() {
    let (config, target) = (small(), target());
    for budget in [Budget::Share(1.0), Budget::Memory] {
        assert_eq!(compile(&with_budget(&config, budget), &target), compile(&config, &target));
    }
}

/// The suggested share is feasible despite the rounding of its decimals to binary.
#[test]
fn smallest_suggested_share_is_feasible() {
    let choice = |cost: f64, pages: u64| RecomputeChoice {
        recompute_plan: RecomputePlan::none(0),
        cost,
        peak: pages << 21,
    };
    for pages in 1..100 {
        let front =
            ParetoFront { choices: vec![choice(0.0, 100), choice(1.0, pages)], plain_peak: 100 << 21 };
        let (_, infeasible) = front.select(Budget::Share(1e-6), &target());
        assert_eq!(front.select(infeasible.unwrap().smallest, &target()).1, None, "{pages}");
    }
}

/// Many budgets of one run are searched at once, by threads that share their work.
#[test]
fn concurrent_searches_do_not_deadlock() {
    let (config, target) = (small(), target());
    let budgets: Vec<RunConfig> =
        (1..=32).map(|share| with_budget(&config, Budget::Share(f64::from(share) / 32.0))).collect();
    for _ in 0..4 {
        let fronts = Arc::new(ParetoFronts::default());
        let programs = base::parallel::map(budgets.clone(), |config| {
            Compiler::sharing(&target, Arc::clone(&fronts)).compile(&config).is_ok()
        });
        assert_eq!(programs, [true; 32]);
    }
}
