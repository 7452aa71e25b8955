//! One corrupted program for each invariant: the verifier names it.

use super::*;
use crate::compile_run;
use crate::value::{Like, Part, View};
use device::{Phase, Pool, Role};
use ops::{Fill, Normal, Op, Slice, TensorType};
use spec::{Init, Leak, RunConfig};

/// In micro-batches of 2, 2 and 1.
fn accumulating() -> RunConfig {
    let mut config = testing::small();
    config.train.batch_size = 5;
    config.strategy.accumulate = 3;
    config
}

/// What the verifier says of a program after something was done to it.
fn corrupted(corrupt: impl FnOnce(&mut Program)) -> Invariant {
    let mut program = compile_run(&accumulating(), &testing::target()).unwrap();
    assert_eq!(verify(&program), Ok(()));
    corrupt(&mut program);
    verify(&program).expect_err("the program is broken").invariant
}

fn code(program: &mut Program, kind: SectionKind) -> &mut Vec<Instruction> {
    &mut program.section_mut(kind).unwrap().code
}

/// The position of the first instruction of a section that is like this.
fn find(program: &Program, kind: SectionKind, like: impl Fn(&Action) -> bool) -> usize {
    let code = &program.section(kind).unwrap().code;
    code.iter().position(|instruction| like(&instruction.action)).unwrap()
}

fn launches(name: &'static str) -> impl Fn(&Action) -> bool {
    move |action| matches!(action, Action::Launch { op, .. } if op.name() == name)
}

/// Others than those that are trained, where the verifier looks at all pairs of values, too.
#[test]
fn combinations_of_strategies_hold_every_invariant() {
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
    // The first bucket's gradients are read after the update has begun to write its parameters' next version.
    let broken = corrupted(|program| {
        let update = find(program, SectionKind::Update, launches("adamw"));
        let again = code(program, SectionKind::Update)[update].clone();
        let fresh: Vec<ValueId> =
            again.action.writes().to_vec().into_iter().map(|id| program.add_version(id)).collect();
        program.places.resize(program.values.len(), None);
        let mut again = again;
        if let Action::Launch { outputs, .. } = &mut again.action {
            *outputs = fresh;
        }
        code(program, SectionKind::Update).insert(update + 1, again);
    });
    assert_eq!(broken, Invariant::NotOverwritten);
}

/// What gives all of a value's elements a number.
fn fill(program: &Program, id: ValueId, phase: Phase) -> Instruction {
    let op = Op::Fill(Fill { output: program.ty(id), value: 1.0 });
    let action = Action::Launch { op, inputs: Vec::new(), outputs: vec![id], workspace: None };
    Instruction::new(action, program.value(id).scope, phase)
}

/// A version of the loss that comes after one that takes its place.
#[test]
fn not_overwritten_by_an_earlier_version() {
    for earlier in 0..2 {
        let broken = corrupted(|program| {
            let loss = program.loss.unwrap();
            let first = program.add_like(program.value(loss).clone());
            let second = program.add_version(first);
            let last = program.add_version(second);
            program.places.resize(program.values.len(), None);
            let earlier = [first, second][earlier];
            let versions = [last, earlier].map(|id| fill(program, id, Phase::Forward));
            code(program, SectionKind::First).splice(0..0, versions);
            // Before anything is allocated.
            program.stage = Stage::Updated;
        });
        assert_eq!(broken, Invariant::NotOverwritten, "version {earlier}");
    }
}

/// A whole after its parts, and a part that lies across others.
#[test]
fn not_overwritten_by_what_overlaps() {
    let whole = corrupted(|program| {
        let again = fill(program, program.buckets[0].parameters, Phase::Start);
        code(program, SectionKind::Start).push(again);
    });
    let across = corrupted(|program| {
        let of = program.buckets[0].parameters;
        let rows = Slice { index: 0, of: 2 };
        let shape = program.ty(of).shape.of_rows(Slice::WHOLE);
        let view = program.add_view(
            "half",
            program.value(of).scope,
            (Like::Fixed, shape),
            View { of, part: Part::Rows(rows) },
        );
        program.places.resize(program.values.len(), None);
        let again = fill(program, view, Phase::Start);
        code(program, SectionKind::Start).push(again);
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
fn one_gradient_where_a_micro_batch_forgets_to_add() {
    for kind in [SectionKind::Micro, SectionKind::Tail] {
        let broken = corrupted(|program| {
            let at = find(program, kind, launches("embedding-backward"));
            code(program, kind).remove(at);
        });
        assert_eq!(broken, Invariant::OneGradient, "{}", kind.name());
    }
}

/// What is added to a gradient that was applied is lost.
#[test]
fn one_gradient_complete_when_it_is_applied() {
    let broken = corrupted(|program| {
        let gradients = program.buckets[0].gradients.unwrap();
        let later = program.add_version(gradients);
        program.places.resize(program.values.len(), None);
        let instruction = fill(program, later, Phase::Update);
        code(program, SectionKind::Update).push(instruction);
        // Before anything is freed.
        program.stage = Stage::Updated;
    });
    assert_eq!(broken, Invariant::OneGradient);
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

/// A third for each sums to one, too.
#[test]
fn weights_are_shares_of_the_samples() {
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
fn every_sample_is_seen() {
    for kind in [SectionKind::Micro, SectionKind::Tail, SectionKind::EvaluationTail] {
        let broken = corrupted(|program| program.section_mut(kind).unwrap().times += 1);
        assert_eq!(broken, Invariant::SharesSumToOne, "{}", kind.name());
    }
}

/// As many samples are uploaded as the section sees.
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

/// What is dropped again is what was dropped before, and no two places drop the same.
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
    assert!(super::dropped_sites(&program, &in_evaluation).is_err(), "nothing is dropped in an evaluation");
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
    let elsewhere = corrupted(|program| {
        let view = views(program)[1];
        program.values[view].offset += 4;
    });
    let larger = corrupted(|program| {
        let view = *views(program).last().unwrap();
        program.values[view].ty = TensorType::f32(&[1 << 20]);
    });
    let of_another_role = corrupted(|program| {
        let view = views(program)[0];
        program.values[view].role = Role::Activation;
    });
    let of_another_storage = corrupted(|program| {
        let version = program.values.iter().position(|value| value.previous.is_some()).unwrap();
        program.values[version].storage = program.buckets[0].parameters;
    });
    assert_eq!([elsewhere, larger, of_another_role, of_another_storage], [Invariant::Containment; 4]);
}

#[test]
fn homes() {
    let elsewhere = corrupted(|program| {
        let at = find(program, SectionKind::First, launches("layer-norm"));
        let written = code(program, SectionKind::First)[at].action.writes()[0];
        program.values[written.index()].pool = Pool::Host;
    });
    let computed_elsewhere = corrupted(|program| {
        let at = find(program, SectionKind::First, launches("layer-norm"));
        code(program, SectionKind::First)[at].home = Pool::Host;
    });
    let within_one_pool = corrupted(|program| {
        let at = find(program, SectionKind::First, |action| matches!(action, Action::Copy { .. }));
        let Action::Copy { from, .. } = code(program, SectionKind::First)[at].action else { unreachable!() };
        program.values[from.index()].pool = Pool::Device;
        // Before anything has a place.
        program.stage = Stage::Brought;
    });
    assert_eq!([elsewhere, computed_elsewhere, within_one_pool], [Invariant::Homes; 3]);
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
        let again = code(program, SectionKind::First)[at].clone();
        code(program, SectionKind::First).insert(at, again);
    });
    assert_eq!([missing, twice], [Invariant::FreedOnce; 2]);
}

/// What is left behind is no longer there, and was not freed.
#[test]
fn freed_once_or_left_behind() {
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
            .filter(|&index| program.values[index].role == Role::Parameter && program.places[index].is_some())
            .collect()
    };
    let same = corrupted(|program| {
        let parameters = parameters(program);
        program.places[parameters[1]] = program.places[parameters[0]];
    });
    let none = corrupted(|program| {
        let first = parameters(program)[0];
        program.places[first] = None;
    });
    assert_eq!([same, none], [Invariant::Overlap; 2]);
}

#[test]
fn carried() {
    let broken = corrupted(|program| {
        // A parameter bucket that the update drops and the next step has all the same.
        let bucket = program.buckets[0].parameters;
        let section = program.section_mut(SectionKind::Update).unwrap();
        section.exit.retain(|&storage| storage != bucket);
        let (scope, phase) = (section.code[0].scope, section.code[0].phase);
        section.code.push(Instruction::new(Action::Free(bucket), scope, phase));
    });
    assert_eq!(broken, Invariant::Carried);

    let broken = corrupted(|program| {
        // Gradients that the last micro-batch gives back before the update reads them.
        let gradients = program.buckets[0].gradients.unwrap();
        let section = program.section_mut(SectionKind::Tail).unwrap();
        section.exit.retain(|&storage| storage != gradients);
        let (scope, phase) = (section.code[0].scope, section.code[0].phase);
        section.code.push(Instruction::new(Action::Free(gradients), scope, phase));
    });
    assert_eq!(broken, Invariant::Carried);
}

/// What is made once is neither made again nor left out.
#[test]
fn freed_once_where_it_is_made_late() {
    let mut config = testing::small();
    config.strategy.init = Init::Lazy;
    let program = compile_run(&config, &testing::target()).unwrap();
    let broken = |change: &dyn Fn(&mut Vec<Instruction>, usize)| {
        let mut program = program.clone();
        let code = code(&mut program, SectionKind::First);
        let made = code.iter().position(|i| i.once && matches!(i.action, Action::Allocate(_))).unwrap();
        change(code, made);
        verify(&program).unwrap_err().invariant
    };
    assert_eq!(broken(&|code, made| code[made].once = false), Invariant::FreedOnce);
    assert_eq!(broken(&|code, made| drop(code.remove(made))), Invariant::FreedOnce);
    let launch = |code: &[Instruction]| {
        code.iter().position(|i| i.once && matches!(i.action, Action::Launch { .. })).unwrap()
    };
    let left_out = broken(&|code, _| drop(code.remove(launch(code))));
    assert_eq!(left_out, Invariant::WriterDominates);
}
