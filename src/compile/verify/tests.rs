//! One corrupted program per invariant: the verifier reports that invariant.

use super::*;
use crate::compile_run;
use crate::ir::{SectionKind, ShapeSource, SubRange, View, When};
use device::{Collective, Phase, Pool, Queue, Role};
use ops::{Fill, Normal, Op, RowSlice, TensorType};
use spec::{Init, Leak, Parallel, RunConfig, Shard};

/// A batch of 5 in micro-batches of 2, 2 and 1.
fn accumulating() -> RunConfig {
    let mut config = testing::small();
    config.train.batch_size = 5;
    config.strategy.accumulate = 3;
    config
}

/// The invariant that the verifier reports for a corrupted program.
fn corrupted(corrupt: impl FnOnce(&mut Program)) -> Invariant {
    corrupted_of(&accumulating(), corrupt)
}

fn corrupted_of(config: &RunConfig, corrupt: impl FnOnce(&mut Program)) -> Invariant {
    let mut program = compile_run(config, &testing::target()).unwrap();
    assert_eq!(verify(&program), Ok(()));
    corrupt(&mut program);
    verify(&program).expect_err("the program is broken").invariant
}

fn code(program: &mut Program, kind: SectionKind) -> &mut Vec<Instruction> {
    &mut program.section_mut(kind).unwrap().code
}

/// The index of a section's first instruction that matches.
fn find(program: &Program, kind: SectionKind, matches: impl Fn(&Action) -> bool) -> usize {
    let code = &program.section(kind).unwrap().code;
    code.iter().position(|instruction| matches(&instruction.action)).unwrap()
}

fn launches(name: &'static str) -> impl Fn(&Action) -> bool {
    move |action| matches!(action, Action::Launch { op, .. } if op.name() == name)
}

/// Combinations other than those of the training tests.
#[test]
fn random_strategy_combinations_satisfy_all_invariants() {
    let trained = testing::tenth(300);
    for choice in testing::sample(2 * trained).into_iter().skip(trained) {
        let program = compile_run(&testing::small_with(&choice), &testing::target());
        let program = program.unwrap_or_else(|violation| panic!("{:?}: {violation}", choice.settings()));
        assert_eq!(program.stage, Stage::Placed);
    }
}

#[test]
fn types() {
    let broken = corrupted(|program| {
        let at = find(program, SectionKind::First, launches("layer-norm"));
        let written = code(program, SectionKind::First)[at].action.writes()[0];
        program.values[written.index()].ty = TensorType::f32(&[3]);
    });
    assert_eq!(broken, Invariant::Types);
}

#[test]
fn writer_dominates() {
    let broken = corrupted(|program| {
        let at = find(program, SectionKind::First, launches("layer-norm"));
        code(program, SectionKind::First).remove(at);
    });
    assert_eq!(broken, Invariant::WriterDominates);
}

#[test]
fn not_overwritten() {
    // The update is repeated after it has overwritten its inputs.
    let broken = corrupted(|program| {
        let update = find(program, SectionKind::Update, launches("adamw"));
        let repeated = code(program, SectionKind::Update)[update].clone();
        let fresh: Vec<ValueId> =
            repeated.action.writes().to_vec().into_iter().map(|id| program.add_version(id)).collect();
        program.arena_offsets.resize(program.values.len(), None);
        let mut repeated = repeated;
        if let Action::Launch { outputs, .. } = &mut repeated.action {
            *outputs = fresh;
        }
        code(program, SectionKind::Update).insert(update + 1, repeated);
    });
    assert_eq!(broken, Invariant::NotOverwritten);
}

/// Fills a value with a constant.
fn fill(program: &Program, id: ValueId, phase: Phase) -> Instruction {
    let op = Op::Fill(Fill { output: program.ty(id), value: 1.0 });
    let action = Action::Launch { op, inputs: Vec::new(), outputs: vec![id], workspace: None };
    Instruction::new(action, program.value(id).scope, phase)
}

/// A version of the loss that is written after a later one.
#[test]
fn not_overwritten_by_an_earlier_version() {
    for earlier in 0..2 {
        let broken = corrupted(|program| {
            let loss = program.loss.unwrap();
            let first = program.add_like(program.value(loss).clone());
            let second = program.add_version(first);
            let last = program.add_version(second);
            program.arena_offsets.resize(program.values.len(), None);
            let earlier = [first, second][earlier];
            let versions = [last, earlier].map(|id| fill(program, id, Phase::Forward));
            code(program, SectionKind::First).splice(0..0, versions);
            // As before allocation.
            program.stage = Stage::Updated;
        });
        assert_eq!(broken, Invariant::NotOverwritten, "version {earlier}");
    }
}

/// A parent written after its views, and a view that overlaps other views.
#[test]
fn not_overwritten_by_overlapping_views() {
    let whole = corrupted(|program| {
        let repeated = fill(program, program.buckets[0].parameters, Phase::Start);
        code(program, SectionKind::Start).push(repeated);
    });
    let across = corrupted(|program| {
        let of = program.buckets[0].parameters;
        let rows = RowSlice { index: 0, of: 2 };
        let shape = program.ty(of).shape.of_rows(RowSlice::WHOLE);
        let view = program.add_view(
            "half",
            program.value(of).scope,
            (ShapeSource::Fixed, shape),
            View { of, range: SubRange::Rows(rows) },
        );
        program.arena_offsets.resize(program.values.len(), None);
        let repeated = fill(program, view, Phase::Start);
        code(program, SectionKind::Start).push(repeated);
    });
    assert_eq!([whole, across], [Invariant::NotOverwritten; 2]);
}

#[test]
fn one_gradient() {
    let broken = corrupted(|program| {
        let at = find(program, SectionKind::Update, launches("adamw"));
        code(program, SectionKind::Update).remove(at);
    });
    assert_eq!(broken, Invariant::OneGradient);
}

#[test]
fn one_gradient_if_a_micro_batch_does_not_add() {
    for kind in [SectionKind::Micro, SectionKind::Tail] {
        let broken = corrupted(|program| {
            let at = find(program, kind, launches("embedding-backward"));
            code(program, kind).remove(at);
        });
        assert_eq!(broken, Invariant::OneGradient, "{}", kind.name());
    }
}

/// Additions to a gradient after its update would be lost.
#[test]
fn one_gradient_complete_at_the_update() {
    let broken = corrupted(|program| {
        let gradients = program.buckets[0].gradients.unwrap();
        let later = program.add_version(gradients);
        program.arena_offsets.resize(program.values.len(), None);
        let instruction = fill(program, later, Phase::Update);
        code(program, SectionKind::Update).push(instruction);
        // As before deallocation.
        program.stage = Stage::Updated;
    });
    assert_eq!(broken, Invariant::OneGradient);
}

/// Gradients are summed over all ranks once, after the last micro-batch; a parameter of which a rank updates its share
/// is completed.
#[test]
fn one_gradient_of_all_ranks() {
    let sharing = |shard| {
        let mut config = accumulating();
        config.train.clip_norm = None;
        config.strategy.parallel = Parallel { data: 2, shard, ..Parallel::default() };
        config
    };
    let (none, states) = (sharing(Shard::None), sharing(Shard::Optimizer));
    let exchanges = |action: &Action| action.collective().is_some();
    let not_summed = corrupted_of(&none, |program| {
        let at = find(program, SectionKind::Micro, exchanges);
        let action = &mut code(program, SectionKind::Micro)[at].action;
        if let Action::Exchange { from, to, .. } = *action {
            *action = Action::Copy { queue: Queue::Compute, from, to };
        }
    });
    let summed_often = [&none, &states].map(|config| {
        corrupted_of(config, |program| {
            let at = find(program, SectionKind::Micro, exchanges);
            code(program, SectionKind::Micro)[at].when = When::Always;
        })
    });
    let updated_in_part = corrupted_of(&states, |program| {
        let at = find(program, SectionKind::Update, exchanges);
        code(program, SectionKind::Update).remove(at);
    });
    // Of four samples in two micro-batches on each rank.
    let mut gradients = sharing(Shard::Gradients);
    (gradients.train.batch_size, gradients.strategy.accumulate) = (8, 2);
    let not_added = corrupted_of(&gradients, |program| {
        let scatters = |action: &Action| action.collective() == Some(Collective::ReduceScatter);
        let at = find(program, SectionKind::Micro, scatters);
        let received = code(program, SectionKind::Micro)[at].action.writes()[0];
        let adds =
            |action: &Action| matches!(action, Action::Launch { inputs, .. } if inputs.contains(&received));
        let at = find(program, SectionKind::Micro, adds);
        code(program, SectionKind::Micro).remove(at);
    });
    let mut clipping = sharing(Shard::Optimizer);
    clipping.train.clip_norm = Some(1.0);
    let reads_other_shares = corrupted_of(&clipping, |program| {
        let at = find(program, SectionKind::Update, launches("global-norm"));
        let share = code(program, SectionKind::Update)[at].action.reads()[0];
        let whole = program.value(share).view.unwrap().of;
        let Action::Launch { inputs, .. } = &mut code(program, SectionKind::Update)[at].action else {
            unreachable!()
        };
        inputs[0] = whole;
    });
    assert_eq!([not_summed, updated_in_part, not_added], [Invariant::OneGradient; 3]);
    assert_eq!(reads_other_shares, Invariant::OneGradient);
    assert_eq!(summed_often, [Invariant::OneGradient; 2]);
}

#[test]
fn shares_sum_to_one() {
    let broken = corrupted(|program| {
        let at = find(program, SectionKind::Micro, launches("cross-entropy-with-gradient"));
        let Action::Launch { op, .. } = &mut code(program, SectionKind::Micro)[at].action else {
            unreachable!()
        };
        *op = op.as_loss().unwrap().of_share(1.0);
    });
    assert_eq!(broken, Invariant::SharesSumToOne);
    let apart = corrupted(|program| {
        let at = find(program, SectionKind::First, launches("cross-entropy-with-gradient"));
        let loss = code(program, SectionKind::First)[at].action.writes()[0];
        let other = program.add_like(program.value(loss).clone());
        let Action::Launch { outputs, .. } = &mut code(program, SectionKind::First)[at].action else {
            unreachable!()
        };
        outputs[0] = other;
        program.loss = Some(other);
        program.stage = Stage::Sectioned;
    });
    assert_eq!(apart, Invariant::SharesSumToOne);
}

/// Shares of one third each would also sum to one.
#[test]
fn loss_weights_equal_shares_of_the_samples() {
    let broken = corrupted(|program| {
        for kind in [SectionKind::First, SectionKind::Micro, SectionKind::Tail] {
            let at = find(program, kind, launches("cross-entropy-with-gradient"));
            let Action::Launch { op, .. } = &mut code(program, kind)[at].action else { unreachable!() };
            *op = op.as_loss().unwrap().of_share(1.0 / 3.0);
        }
    });
    assert_eq!(broken, Invariant::SharesSumToOne);
}

#[test]
fn all_samples_are_processed() {
    for kind in [SectionKind::Micro, SectionKind::Tail, SectionKind::EvaluationTail] {
        let broken = corrupted(|program| program.section_mut(kind).unwrap().repeat_count += 1);
        assert_eq!(broken, Invariant::SharesSumToOne, "{}", kind.name());
    }
}

/// Each section uploads the samples that it processes.
#[test]
fn uploads_are_shares_of_the_batch() {
    for kind in [SectionKind::First, SectionKind::Tail] {
        let broken = corrupted(|program| program.section_mut(kind).unwrap().samples += 1);
        assert_eq!(broken, Invariant::Types, "{}", kind.name());
    }
}

#[test]
fn random_sites() {
    let broken = corrupted(|program| {
        let at = find(program, SectionKind::Start, launches("normal"));
        let Action::Launch { op, .. } = &mut code(program, SectionKind::Start)[at].action else {
            unreachable!()
        };
        let Op::Normal(normal) = *op else { unreachable!() };
        *op = Op::Normal(Normal { site: normal.site + 1, ..normal });
    });
    assert_eq!(broken, Invariant::RandomSites);
}

/// Recomputed dropout repeats the draw, and no two sites share one.
#[test]
fn dropped_sites() {
    let drops = |action: &Action| matches!(action, Action::Launch { op: Op::Dropout(_), .. });
    for backward in [false, true] {
        let config = testing::reshaped(accumulating(), |model| model.dropout.residual = 0.1);
        let mut program = compile_run(&config, &testing::target()).unwrap();
        assert_eq!(verify(&program), Ok(()));
        let code = code(&mut program, SectionKind::First);
        let is_of = |instruction: &&mut Instruction| {
            (instruction.phase == Phase::Backward) == backward && drops(&instruction.action)
        };
        let found = code.iter_mut().find(is_of).unwrap();
        let Action::Launch { op: Op::Dropout(dropout), .. } = &mut found.action else { unreachable!() };
        dropout.dropped.site += 1;
        assert_eq!(verify(&program).unwrap_err().invariant, Invariant::RandomSites);
    }
    let config = testing::reshaped(accumulating(), |model| model.dropout.residual = 0.1);
    let program = compile_run(&config, &testing::target()).unwrap();
    let first = program.section(SectionKind::First).unwrap();
    assert_eq!(super::dropped_sites(&program, first), Ok(()));
    let in_evaluation = Section { kind: SectionKind::Evaluation, ..first.clone() };
    assert!(super::dropped_sites(&program, &in_evaluation).is_err(), "evaluation has no dropout");
    let mut twice = first.clone();
    twice.code.extend(first.code.iter().find(|instruction| drops(&instruction.action)).cloned());
    assert!(super::dropped_sites(&program, &twice).is_err(), "a forward pass drops once at a site");
}

#[test]
fn flops() {
    for kind in [SectionKind::First, SectionKind::Tail, SectionKind::EvaluationTail] {
        let broken = corrupted(|program| {
            let at = find(program, kind, launches("attention"));
            code(program, kind)[at].recompute = true;
        });
        assert_eq!(broken, Invariant::Flops, "{}", kind.name());
    }
}

#[test]
fn containment() {
    let views = |program: &Program| program.parameters.iter().map(|p| p.value.index()).collect::<Vec<_>>();
    let wrong_offset = corrupted(|program| {
        let view = views(program)[1];
        program.values[view].offset += 4;
    });
    let larger = corrupted(|program| {
        let view = *views(program).last().unwrap();
        program.values[view].ty = TensorType::f32(&[1 << 20]);
    });
    let other_role = corrupted(|program| {
        let view = views(program)[0];
        program.values[view].role = Role::Activation;
    });
    let other_storage = corrupted(|program| {
        let version = program.values.iter().position(|value| value.previous.is_some()).unwrap();
        program.values[version].storage = program.buckets[0].parameters;
    });
    assert_eq!([wrong_offset, larger, other_role, other_storage], [Invariant::Containment; 4]);
}

#[test]
fn devices() {
    let wrong_offset = corrupted(|program| {
        let at = find(program, SectionKind::First, launches("layer-norm"));
        let written = code(program, SectionKind::First)[at].action.writes()[0];
        program.values[written.index()].pool = Pool::Host;
    });
    let computed_elsewhere = corrupted(|program| {
        let at = find(program, SectionKind::First, launches("layer-norm"));
        code(program, SectionKind::First)[at].device = Pool::Host;
    });
    let within_one_pool = corrupted(|program| {
        let at = find(program, SectionKind::First, |action| matches!(action, Action::Copy { .. }));
        let Action::Copy { from, .. } = code(program, SectionKind::First)[at].action else { unreachable!() };
        program.values[from.index()].pool = Pool::Device;
        // As before offsets are assigned.
        program.stage = Stage::Transferred;
    });
    assert_eq!([wrong_offset, computed_elsewhere, within_one_pool], [Invariant::Devices; 3]);
}

#[test]
fn events() {
    let waits = |action: &Action| matches!(action, Action::Wait { .. });
    use SectionKind::{Evaluation, EvaluationTail, First, Micro, Tail, Update};
    for kind in [First, Micro, Tail, Update, Evaluation, EvaluationTail] {
        let count = {
            let program = compile_run(&accumulating(), &testing::target()).unwrap();
            program.section(kind).unwrap().code.iter().filter(|i| waits(&i.action)).count()
        };
        assert!(count > 0, "{} waits for its batch", kind.name());
        for nth in 0..count {
            let broken = corrupted(|program| {
                let code = code(program, kind);
                let at = (0..code.len()).filter(|&i| waits(&code[i].action)).nth(nth).unwrap();
                code.remove(at);
            });
            assert_eq!(broken, Invariant::Events, "{} wait {nth}", kind.name());
        }
    }
}

#[test]
fn freed_once() {
    let frees = |action: &Action| matches!(action, Action::Free(_));
    let missing = corrupted(|program| {
        let at = find(program, SectionKind::First, frees);
        code(program, SectionKind::First).remove(at);
    });
    let twice = corrupted(|program| {
        let at = find(program, SectionKind::First, frees);
        let repeated = code(program, SectionKind::First)[at].clone();
        code(program, SectionKind::First).insert(at, repeated);
    });
    assert_eq!([missing, twice], [Invariant::FreedOnce; 2]);
}

/// A leaked storage is no longer live, and is not freed.
#[test]
fn freed_once_or_leaked() {
    let mut config = testing::small();
    config.strategy.leak = Some(Leak::Logits);
    let program = compile_run(&config, &testing::target()).unwrap();
    let broken = |change: fn(&mut Vec<Instruction>, usize)| {
        let mut program = program.clone();
        let leaks = |action: &Action| matches!(action, Action::Leak(_));
        let at = find(&program, SectionKind::First, leaks);
        change(code(&mut program, SectionKind::First), at);
        verify(&program).unwrap_err().invariant
    };
    let missing = broken(|code, at| drop(code.remove(at)));
    let twice = broken(|code, at| code.insert(at, code[at].clone()));
    let too_early = broken(|code, at| code[..=at].rotate_right(1));
    assert_eq!([missing, twice, too_early], [Invariant::FreedOnce; 3]);
}

#[test]
fn overlap() {
    let parameters = |program: &Program| -> Vec<usize> {
        (0..program.values.len())
            .filter(|&index| {
                program.values[index].role == Role::Parameter && program.arena_offsets[index].is_some()
            })
            .collect()
    };
    let same = corrupted(|program| {
        let parameters = parameters(program);
        program.arena_offsets[parameters[1]] = program.arena_offsets[parameters[0]];
    });
    let none = corrupted(|program| {
        let first = parameters(program)[0];
        program.arena_offsets[first] = None;
    });
    assert_eq!([same, none], [Invariant::Overlap; 2]);
}

#[test]
fn live_sets() {
    let broken = corrupted(|program| {
        // A parameter bucket that the update frees although the next step reads it.
        let bucket = program.buckets[0].parameters;
        let section = program.section_mut(SectionKind::Update).unwrap();
        section.live_out.retain(|&storage| storage != bucket);
        let (scope, phase) = (section.code[0].scope, section.code[0].phase);
        section.code.push(Instruction::new(Action::Free(bucket), scope, phase));
    });
    assert_eq!(broken, Invariant::LiveSets);

    let broken = corrupted(|program| {
        // Gradients that the last micro-batch frees before the update reads them.
        let gradients = program.buckets[0].gradients.unwrap();
        let section = program.section_mut(SectionKind::Tail).unwrap();
        section.live_out.retain(|&storage| storage != gradients);
        let (scope, phase) = (section.code[0].scope, section.code[0].phase);
        section.code.push(Instruction::new(Action::Free(gradients), scope, phase));
    });
    assert_eq!(broken, Invariant::LiveSets);
}

/// Lazily initialised storages are initialised exactly once.
#[test]
fn freed_once_with_lazy_initialisation() {
    let mut config = testing::small();
    config.strategy.init = Init::Lazy;
    let program = compile_run(&config, &testing::target()).unwrap();
    let broken = |change: &dyn Fn(&mut Vec<Instruction>, usize)| {
        let mut program = program.clone();
        let code = code(&mut program, SectionKind::First);
        let allocation =
            code.iter().position(|i| i.is_once() && matches!(i.action, Action::Allocate(_))).unwrap();
        change(code, allocation);
        verify(&program).unwrap_err().invariant
    };
    assert_eq!(broken(&|code, allocation| code[allocation].when = When::Always), Invariant::FreedOnce);
    assert_eq!(broken(&|code, allocation| drop(code.remove(allocation))), Invariant::FreedOnce);
    let launch = |code: &[Instruction]| {
        code.iter().position(|i| i.is_once() && matches!(i.action, Action::Launch { .. })).unwrap()
    };
    let left_out = broken(&|code, _| drop(code.remove(launch(code))));
    assert_eq!(left_out, Invariant::WriterDominates);
}
