//! Every trainable parameter has one complete gradient, which one update applies.

use std::collections::{HashMap, HashSet};

use super::{Invariant, Violation, at, broken};
use crate::ir::{Action, Program, ShapeSource, SubRange, View, When};
use device::{Collective, Role};
use ops::ValueId;

/// In sections with samples, each gradient is written once, or only added to if it is live-in. If ranks divide the
/// gradients, the whole of each bucket is the section's own, and scattered once.
pub(super) fn one_gradient(program: &Program) -> Result<(), Violation> {
    for section in program.step().filter(|section| section.samples > 0) {
        let carried = program.mask(&section.live_in);
        // By first version of a gradient.
        let mut writes = vec![0u32; program.values.len()];
        let mut updated = vec![0u32; program.values.len()];
        let origin = |mut id: ValueId| {
            while let Some(previous) = program.value(id).previous {
                id = previous;
            }
            id
        };
        // By bucket: the whole gradients that are scattered.
        let mut scattered: HashMap<usize, ValueId> = HashMap::new();
        // By view of such a whole: the first version of a gradient.
        let mut parts: HashMap<View, ValueId> = HashMap::new();
        // Received shares of sums that are not yet added to the bucket's.
        let mut received: HashSet<ValueId> = HashSet::new();
        for instruction in &section.code {
            if let Action::Exchange { collective, from, to } = instruction.action {
                if let (Collective::ReduceScatter, ShapeSource::Bucket(bucket)) =
                    (collective, program.value(from).shape_source)
                    && scattered.insert(bucket, program.storage(from)).is_some()
                {
                    let detail = format!("{} scatters again", at(program, section, instruction));
                    return broken(Invariant::OneGradient, detail);
                }
                let own = program.buckets.iter().filter_map(|bucket| bucket.gradients);
                if collective == Collective::ReduceScatter
                    && !own.map(|id| program.storage(id)).any(|id| id == program.storage(to))
                {
                    received.insert(program.storage(to));
                }
                // A sum over ranks adds nothing of this rank's.
                continue;
            }
            if let Action::Launch { inputs, .. } = &instruction.action {
                received.retain(|share| !inputs.iter().any(|id| program.storage(*id) == *share));
            }
            for &write in instruction.action.writes() {
                let value = program.value(write);
                if value.role == Role::Gradient {
                    let first = origin(write);
                    parts.extend(program.value(first).view.map(|view| (view, first)));
                    // A sum that is accumulated elsewhere may be stored here as the first version.
                    let has_value = writes[first.index()] > 0 || carried[program.storage(first).index()];
                    match value.previous {
                        Some(_) if has_value => updated[first.index()] += 1,
                        _ => writes[first.index()] += 1,
                    }
                }
            }
        }
        if let Some(&share) = received.iter().next() {
            let detail = format!("{} is not added in {}", program.full_name(share), section.kind.name());
            return broken(Invariant::OneGradient, detail);
        }
        for parameter in &program.parameters {
            let trainable = program.buckets[parameter.bucket].trainable;
            let gradient = match parameter.gradient {
                Some(gradient) if trainable => gradient,
                None if !trainable => continue,
                _ => return broken(Invariant::OneGradient, program.full_name(parameter.value)),
            };
            // This section's own, if it is scattered.
            let view = program.value(gradient).view.expect("gradients lie in buckets");
            let whole = scattered.get(&parameter.bucket).copied().unwrap_or(view.of);
            let gradient = parts.get(&View { of: whole, ..view }).copied().unwrap_or(gradient);
            let carried = carried[program.storage(gradient).index()];
            let (writes, updated) = (writes[gradient.index()], updated[gradient.index()]);
            let is_valid = if carried { writes == 0 && updated > 0 } else { writes == 1 };
            if !is_valid {
                let name = program.full_name(parameter.value);
                let kind = section.kind.name();
                let detail = format!("{name} has {writes} gradients and {updated} additions in {kind}");
                return broken(Invariant::OneGradient, detail);
            }
        }
    }
    Ok(())
}

/// In a step, each trainable bucket is updated once, in any section, with its own gradients, to which nothing is
/// added afterwards.
pub(super) fn one_update(program: &Program) -> Result<(), Violation> {
    // By updated parameters: the number of updates, and the gradients.
    let mut updates: HashMap<ValueId, (usize, ValueId)> = HashMap::new();
    let mut applied = vec![false; program.values.len()];
    // By storage: whether it consists of sums over all ranks. Shares begin as zeros.
    let mut summed = vec![program.ranks == 1; program.values.len()];
    for index in program.trained().filter(|index| program.divides_gradients(*index)) {
        summed[program.buckets[index].gradients.expect("divided").index()] = true;
    }
    // Gradients of which only this rank's share was summed, in place.
    let mut partial: HashSet<ValueId> = HashSet::new();
    let mut zeros: HashSet<ValueId> = HashSet::new();
    // Parameters of which this rank has updated its share.
    let mut ungathered: HashSet<ValueId> = HashSet::new();
    for section in program.step() {
        for instruction in &section.code {
            let is_share = |id: ValueId| {
                program.value(id).view.is_some_and(|view| matches!(view.range, SubRange::Share(_)))
            };
            let of_others = |id: &&ValueId| partial.contains(&program.storage(**id)) && !is_share(**id);
            if let Some(&id) = instruction.action.reads().iter().find(of_others) {
                let (name, at) = (program.full_name(id), at(program, section, instruction));
                let detail = format!("{at} reads {name}, of which only a share was summed");
                return broken(Invariant::OneGradient, detail);
            }
            if let Action::Launch { op, inputs, outputs, .. } = &instruction.action
                && let Some(update) = op.as_update()
            {
                let original = |id| program.original(id);
                let parameters = program.storage(original(outputs[0]));
                let gradients = original(inputs[update.gradients_input()]);
                let is_own = |&(output, input): &(usize, usize)| {
                    program.storage(original(outputs[output])) == program.storage(original(inputs[input]))
                };
                if !op.updates().iter().all(is_own) {
                    let detail =
                        format!("{} updates a value in other memory", at(program, section, instruction));
                    return broken(Invariant::OneGradient, detail);
                }
                if !summed[program.storage(gradients).index()] {
                    let detail =
                        format!("{} applies gradients of one rank", at(program, section, instruction));
                    return broken(Invariant::OneGradient, detail);
                }
                updates.entry(parameters).or_insert((0, gradients)).0 += section.repeat_count;
                let is_share =
                    |view: View| matches!(view.range, SubRange::Share(_)).then_some(program.storage(view.of));
                ungathered.extend(program.value(outputs[0]).view.and_then(is_share));
                applied[program.storage(gradients).index()] = true;
                continue;
            }
            // Zeroed gradients, and copies of them.
            match &instruction.action {
                Action::Launch { op, outputs, .. } if op.is_zeros() => {
                    zeros.extend(outputs.iter().copied());
                    continue;
                }
                Action::Copy { from, .. } if zeros.contains(from) => continue,
                // Parameters that live in shares are gathered before their use, not after their update.
                Action::Exchange { collective: Collective::AllGather, to, .. }
                    if program.value(*to).previous.is_some()
                        && program.value(*to).role == Role::Parameter
                        && !ungathered.remove(&program.storage(*to)) =>
                {
                    let detail =
                        format!("{} gathers what was not updated", at(program, section, instruction));
                    return broken(Invariant::OneGradient, detail);
                }
                Action::Exchange {
                    collective: collective @ (Collective::AllReduce | Collective::ReduceScatter),
                    from,
                    to,
                } if program.storage(*from) == program.storage(*to) => {
                    let summed = &mut summed[program.storage(*from).index()];
                    if std::mem::replace(summed, true) || instruction.when != When::Last {
                        let detail = format!("{} sums a second time", at(program, section, instruction));
                        return broken(Invariant::OneGradient, detail);
                    }
                    if *collective == Collective::ReduceScatter {
                        partial.insert(program.storage(*from));
                    }
                }
                Action::Exchange { collective: Collective::ReduceScatter, to, .. } => {
                    summed[program.storage(*to).index()] = true;
                }
                action if program.ranks > 1 => {
                    let is_summed = |id: &&ValueId| summed[program.storage(**id).index()];
                    let adds_sums =
                        !action.reads().is_empty() && action.reads().iter().all(|id| is_summed(&id));
                    let late = action.writes().iter().find(is_summed).filter(|_| !adds_sums);
                    if let Some(&id) = late {
                        let (name, at) = (program.full_name(id), at(program, section, instruction));
                        return broken(
                            Invariant::OneGradient,
                            format!("{at} adds to {name} after it was summed"),
                        );
                    }
                }
                _ => {}
            }
            let late_write =
                instruction.action.writes().iter().find(|id| applied[program.storage(**id).index()]);
            if let Some(&id) = late_write {
                let name = program.full_name(id);
                let detail =
                    format!("{} adds to {name} after it was applied", at(program, section, instruction));
                return broken(Invariant::OneGradient, detail);
            }
        }
    }
    if let Some(&storage) = ungathered.iter().min() {
        let detail = format!("{} is updated in part", program.full_name(storage));
        return broken(Invariant::OneGradient, detail);
    }
    for bucket in &program.buckets {
        let found = updates.get(&bucket.parameters).copied();
        let is_valid = match (found, bucket.gradients) {
            (Some((times, gradients)), Some(own)) => {
                let is_own = program.storage(gradients) == program.storage(own);
                bucket.trainable && times == 1 && is_own
            }
            (None, None) => !bucket.trainable,
            _ => false,
        };
        if !is_valid {
            let times = found.map_or(0, |(times, _)| times);
            let detail = format!("{} is updated {times} times", program.full_name(bucket.parameters));
            return broken(Invariant::OneGradient, detail);
        }
    }
    Ok(())
}
