//! The programs of ranks: what they exchange, and when, and which memory they need.

use super::*;

/// A share is of the padded bucket: states take one part in n of their whole, rounded up to 256 elements a rank.
#[test]
fn ranks_that_divide_states_hold_their_share() {
    for ranks in 2..=4 {
        let config = testing::with_optimizer(&uneven(), &["optimizer.adamw = { lr = 1e-2 }"]);
        let whole = with_ranks(&config, ranks);
        let program = compile(&whole, &target(0)).unwrap();
        for rank in 0..ranks {
            let shared = compile(&sharing(whole.clone(), Shard::Optimizer), &target(rank)).unwrap();
            for (bucket, of_whole) in shared.buckets.iter().zip(&program.buckets) {
                let elements = program.ty(of_whole.parameters).elements().next_multiple_of(256 * ranks);
                assert_eq!(shared.ty(bucket.parameters).elements(), elements);
                assert_eq!(shared.ty(bucket.gradients.unwrap()).elements(), elements);
                let states = bucket.states.iter().map(|state| shared.ty(state.value).elements());
                assert!(states.eq([elements / ranks; 2]), "{ranks} ranks");
            }
            // To each of the others, a rank sends its share of gradients, of its parameters, and its norm.
            let parameters: u64 =
                shared.buckets.iter().map(|bucket| shared.ty(bucket.parameters).bytes()).sum();
            let sent: u64 = shared
                .step()
                .flat_map(|section| &section.code)
                .map(|instruction| shared.sent_bytes(&instruction.action))
                .sum();
            let norm = 4;
            assert_eq!(sent, (ranks as u64 - 1) * (2 * parameters / ranks as u64 + norm));
        }
    }
}

/// What a rank exchanges in a step, in order: the kinds and sizes.
pub(super) fn exchanged(program: &Program) -> Vec<(Collective, u64)> {
    let mut exchanged = Vec::new();
    for section in program.step() {
        for iteration in 1..=section.repeat_count {
            for instruction in &section.code {
                let Action::Exchange { collective, from, to } = instruction.action else { continue };
                if instruction.when == When::Always || iteration == section.repeat_count {
                    exchanged.push((collective, program.ty(from).bytes().max(program.ty(to).bytes())));
                }
            }
        }
    }
    exchanged
}

/// All ranks exchange the same in the same order, whatever their samples. Sums are those of all gradients.
#[test]
fn ranks_exchange_the_same() {
    for (ranks, shard) in (1..=4).flat_map(|ranks| SHARDS.map(|shard| (ranks, shard))) {
        for (accumulate, batch_size) in [(1, 5), (2, 5), (3, 5), (2, 8)] {
            let config = changed(|config| {
                (config.strategy.accumulate, config.train.batch_size) = (accumulate, batch_size);
            });
            let config = sharing(with_ranks(&config, ranks), shard);
            if RANK_CONFLICTS.iter().any(|conflict| (conflict.check)(&config).is_some()) {
                continue;
            }
            let programs: Vec<Program> =
                (0..ranks).map(|rank| compile(&config, &target(rank)).unwrap()).collect();
            let of_first = exchanged(&programs[0]);
            assert!(programs.iter().all(|program| exchanged(program) == of_first), "{shard:?}");
            if ranks == 1 {
                assert!(of_first.is_empty());
                continue;
            }
            let is_sum = |(collective, _): &&(Collective, u64)| *collective != Collective::AllGather;
            let sums: u64 = of_first.iter().filter(is_sum).map(|(_, bytes)| bytes).sum();
            let elements = |bucket: &Bucket| programs[0].ty(bucket.whole).elements() as u64;
            let gradients: u64 = programs[0].buckets.iter().map(|bucket| 4 * elements(bucket)).sum();
            let times = if shard >= Shard::Gradients { programs[0].micro_batches() as u64 } else { 1 };
            assert_eq!(sums, times * gradients, "{ranks} ranks, {shard:?}");
        }
    }
}

/// One sample has no slices of the loss, and other activations to recompute.
#[test]
fn ranks_of_unequal_samples_gather_the_same() {
    let toml = |model: &str, strategy: &str| {
        format!(
            "name = 't'
            [model.sequential]
            {model}
            [data.random]
            [train]
            batch_size = 3
            optimizer.sgd = {{ lr = 0.1 }}
            [measure]
            steps = 1
            [strategies.plain]
            parallel.data = 2
            parallel.shard = 'parameters'
            {strategy}\n"
        )
    };
    let sliced = "input = [8]
        layers = [{ linear = 24 }, 'relu', { linear = 24 }, 'relu', { linear = 4 }]";
    // Backward of a first layer needs no parameters, unless the layer is recomputed.
    let convolutions = "input = [3, 64, 64]
        layers = [{ conv2d = { out = 16, kernel = 3, padding = 1 } }, { repeat = { times = 12, layers = ['gelu', 'tanh'] } },
            { conv2d = { out = 1, kernel = 3, padding = 1 } }, 'flatten', { linear = 10 }]";
    let of_slices = ["", "parallel.ahead = 0", "parallel.ahead = 2", "parallel.keep_gathered = true"];
    let slices = of_slices.map(|strategy| toml(sliced, &format!("loss_chunks = 2\n{strategy}")));
    let budgets = (4..16).map(|mib| toml(convolutions, &format!("recompute = {{ budget = '{mib} MiB' }}")));
    for toml in slices.into_iter().chain(budgets) {
        let config = testing::changed(&toml, &[]).unwrap();
        let of_rank = |rank| exchanged(&plan::compile_verified(&config, &target(rank)).unwrap());
        assert_eq!(of_rank(0), of_rank(1), "{toml}");
    }
}

/// Of what ranks divide, a rank has one part in n; whole buckets live for one layer and the next.
#[test]
fn ranks_hold_whole_buckets_layer_by_layer() {
    let config = testing::reshaped(changed(|config| config.train.batch_size = 8), |model| model.layers = 6);
    for shard in [Shard::Gradients, Shard::Parameters] {
        let program = compile(&sharing(with_ranks(&config, 4), shard), &target(1)).unwrap();
        for bucket in &program.buckets {
            let elements = |id| program.ty(id).elements();
            assert_eq!(elements(bucket.gradients.unwrap()) * 4, elements(bucket.whole));
            let parts = if shard == Shard::Parameters { 4 } else { 1 };
            assert_eq!(elements(bucket.parameters) * parts, elements(bucket.whole));
        }
        // By role: the most whole buckets of blocks that are live at once.
        let most = |role: Role| {
            let mut most = 0;
            for section in program.step().filter(|section| section.samples > 0) {
                let is_whole = |id: ValueId| {
                    let value = program.value(id);
                    let is_block = program.scope(value.scope).path.starts_with("blocks.");
                    let persists = section.live_in.contains(&id) || section.live_out.contains(&id);
                    value.role == role && is_block && !persists
                };
                let mut live = 0;
                for instruction in &section.code {
                    match instruction.action {
                        Action::Allocate(id) if is_whole(id) => live += 1,
                        Action::Free(id) if is_whole(id) => live -= 1,
                        _ => {}
                    }
                    most = most.max(live);
                }
            }
            most
        };
        // Beside a whole, a share of the sums waits to be added.
        assert!((2..=3).contains(&most(Role::Gradient)), "{shard:?}: {}", most(Role::Gradient));
        assert_eq!(most(Role::Parameter), if shard == Shard::Parameters { 2 } else { 0 });
    }
}

/// Parameters that are kept from forward to backward are gathered once in each micro-batch; the distance in layers decides
/// when. Neither changes a bit.
#[test]
fn gathers_are_kept_and_early_as_chosen() {
    let config = testing::reshaped(changed(|config| config.train.batch_size = 8), |model| model.layers = 6);
    let gathering = |keep_gathered, ahead| {
        let mut config = sharing(with_ranks(&config, 2), Shard::Parameters);
        (config.strategy.parallel.keep_gathered, config.strategy.parallel.ahead) = (keep_gathered, ahead);
        config
    };
    // Gathers of parameters in a step, and the most bytes of gathered parameters.
    let gathers = |config: &RunConfig| {
        let program = compile(config, &target(0)).unwrap();
        let gathers = |(collective, bytes): &&(Collective, u64)| {
            *collective == Collective::AllGather && *bytes > 4 * program.share.unwrap().of as u64
        };
        let peak = predict(&program, &target(0), RunSchedule::of(config)).device.peak();
        (exchanged(&program).iter().filter(gathers).count(), peak)
    };
    let plain = run(&gathering(false, 1));
    // Each bucket in forward and backward of both micro-batches; the last one's stays between them.
    let buckets = compile(&config, &target(0)).unwrap().buckets.len();
    let (often, peak) = gathers(&gathering(false, 1));
    assert_eq!(often, 2 * (2 * buckets - 1));
    let (once, kept_peak) = gathers(&gathering(true, 1));
    assert_eq!(once, 2 * buckets);
    assert!(kept_peak > peak);
    let peaks = [0, 1, 3].map(|ahead| gathers(&gathering(false, ahead)).1);
    assert!(peaks.is_sorted() && peaks[0] < peaks[2], "{peaks:?}");
    // A layer that would be gathered before its copy is freed is kept instead.
    let (far, far_peak) = gathers(&gathering(false, 50));
    assert_eq!((far, far_peak), (once, kept_peak));
    for (keep_gathered, ahead) in [(true, 1), (false, 0), (false, 3), (true, 0)] {
        let all = run(&gathering(keep_gathered, ahead));
        assert!(all.iter().zip(&plain).all(|(rank, plain)| rank.digests == plain.digests), "{ahead} ahead");
    }
}

/// With `reduce = "step"`, whole gradients are summed once, in the last micro-batch, as of ranks that divide the states alone.
#[test]
fn gradients_of_a_step_are_summed_once() {
    let config = with_ranks(&changed(|config| config.train.batch_size = 8), 2);
    let of_step = |reduce| {
        let mut config = sharing(config.clone(), Shard::Parameters);
        config.strategy.parallel.reduce = reduce;
        config
    };
    let [micro, step] = [Reduce::Micro, Reduce::Step].map(of_step);
    let programs = [&micro, &step].map(|config| compile(config, &target(0)).unwrap());
    let sums = |program: &Program| -> u64 {
        let all = exchanged(program).into_iter();
        all.filter(|(collective, _)| *collective != Collective::AllGather).map(|(_, bytes)| bytes).sum()
    };
    assert_eq!(sums(&programs[0]), 2 * sums(&programs[1]));
    for (divided, whole) in programs[0].buckets.iter().zip(&programs[1].buckets) {
        let elements = |program: &Program, bucket: &Bucket| program.ty(bucket.gradients.unwrap()).elements();
        assert_eq!(2 * elements(&programs[0], divided), elements(&programs[1], whole));
    }
    let [step, states] = [step, sharing(config, Shard::Optimizer)].map(|config| run(&config));
    assert!(step[0].losses().eq(states[0].losses()));
    assert!(tensors(&step) == tensors(&states));
}

/// Matrices are gathered in 16 bits for 16-bit matmuls; what is read in fp32 stays fp32. A cast of a whole remains for none.
#[test]
fn shares_are_cast_before_they_are_gathered() {
    let config = testing::reshaped(changed(|config| config.train.batch_size = 8), |model| model.tied = false);
    let mut config = sharing(with_ranks(&config, 2), Shard::Parameters);
    let gathered = |config: &RunConfig| {
        let program = compile(config, &target(0)).unwrap();
        let all = |is_cast: bool| {
            let buckets = program.buckets.iter().filter(|bucket| bucket.cast_to.is_some() == is_cast);
            buckets.map(|bucket| program.ty(bucket.whole).elements() as u64).sum::<u64>()
        };
        let of_parameters = |(collective, bytes): &&(Collective, u64)| {
            *collective == Collective::AllGather && *bytes > 4 * program.share.unwrap().of as u64
        };
        let sections = program.sections.iter();
        let casts =
            sections.flat_map(|section| &section.code).filter_map(|instruction| match &instruction.action {
                Action::Launch { op, inputs, .. } if op.is_cast() => Some(inputs),
                _ => None,
            });
        let casts: Vec<ValueId> = casts.flatten().copied().collect();
        assert!(
            casts.iter().all(|id| program.value(*id).role != Role::Cast),
            "a gathered cast is cast again"
        );
        let of_whole = casts.iter().filter(|id| program.value(**id).role == Role::Parameter);
        let elements: usize = of_whole.map(|id| program.ty(*id).elements()).max().unwrap_or(0);
        let sent: u64 = exchanged(&program).iter().filter(of_parameters).map(|(_, bytes)| bytes).sum();
        ([false, true].map(all), sent, elements)
    };
    config.strategy.parallel.keep_gathered = true;
    let ([all, none], sent, _) = gathered(&config);
    assert_eq!((none, sent), (0, 2 * 4 * all));
    config.strategy.precision = Precision::Bf16;
    let ([full, half], sent, largest) = gathered(&config);
    assert!(half > full && full > 0, "{full} and {half}");
    assert_eq!(sent, 2 * (4 * full + 2 * half));
    let program = compile(&config, &target(0)).unwrap();
    let share = |bucket: &Bucket| program.ty(bucket.parameters).elements();
    let largest_share = program.buckets.iter().filter(|bucket| bucket.cast_to.is_some()).map(share).max();
    assert!(largest <= largest_share.unwrap(), "a cast of {largest} elements");
}

/// Gradients are exchanged while backward goes on: in the last micro-batch, each bucket once it is complete.
#[test]
fn exchange_begins_before_backward_ends() {
    let program = compile(&with_ranks(&changed(|_| {}), 2), &target(0)).unwrap();
    let last = program.step().filter(|section| section.samples > 0).last().unwrap();
    let is_exchange = |action: &Action| matches!(action, Action::Exchange { .. });
    let first = last.code.iter().position(|instruction| is_exchange(&instruction.action)).unwrap();
    let launches = last.code[first..].iter().filter(|of| matches!(of.action, Action::Launch { .. }));
    assert!(launches.count() > 10, "operations follow the first exchange");
}

/// One rank is the program without the key.
#[test]
fn one_rank_exchanges_nothing() {
    let config = changed(|_| {});
    let program = compile(&config, &target(0)).unwrap();
    assert_eq!(program, compile(&with_ranks(&config, 1), &target(0)).unwrap());
    assert!(exchanged(&program).is_empty());
}

/// Memory beyond that of the rank's samples: none.
#[test]
fn ranks_need_the_memory_of_their_samples() {
    let mut config = changed(|config| config.train.batch_size = 8);
    let peak = |config: &RunConfig| {
        let target = target(0);
        predict(&compile(config, &target).unwrap(), &target, RunSchedule::of(config)).device.peak()
    };
    let two = peak(&with_ranks(&config, 2));
    config.train.batch_size = 4;
    assert_eq!(two, peak(&config));
}

#[test]
fn program_of_a_rank_is_instantiated_at_another_size() {
    let config = with_ranks(&uneven(), 2);
    let mut larger = config.clone();
    larger.train.batch_size = 9;
    let target = Target { threads: 3, ..target(1) };
    let mut compiler = Compiler::new(&target);
    compiler.compile(&larger).unwrap();
    assert_eq!(compiler.compile(&config).unwrap().program, compile(&config, &target).unwrap());
}

/// Of initial values in host memory, one whole bucket at a time is on the device until it is divided.
#[test]
fn buckets_are_divided_one_by_one_at_the_start() {
    let config = testing::reshaped(changed(|config| config.train.batch_size = 8), |model| model.layers = 6);
    let start = |init| {
        let mut config = sharing(with_ranks(&config, 4), Shard::Parameters);
        config.strategy.init = init;
        let program = compile(&config, &target(0)).unwrap();
        let predicted = predict(&program, &target(0), RunSchedule::of(&config));
        predicted.device.phase_peak(Phase::Start).live.total()
    };
    assert_eq!(start(Init::Host), start(Init::Device));
}
