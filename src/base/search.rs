//! Search for the largest number that satisfies a monotone condition.

/// The largest number from 1 to `most` that fits, or 0, if all below one that fits do. Starts with a guess, steps away from
/// it in growing steps, and bisects.
///
/// # Errors
/// The errors of `fits`.
pub fn largest<E>(
    most: usize,
    guess: usize,
    mut fits: impl FnMut(usize) -> Result<bool, E>,
) -> Result<usize, E> {
    let (mut largest, mut fails) = (0, most + 1);
    let (mut probe, mut step) = (guess, 1);
    while largest + 1 < fails {
        probe = probe.clamp(largest + 1, fails - 1);
        if fits(probe)? {
            largest = probe;
        } else {
            fails = probe;
        }
        probe = match (largest, fails) {
            (_, fails) if fails > most => largest.saturating_add(step),
            (0, _) => fails.saturating_sub(step),
            _ => largest.midpoint(fails),
        };
        step *= 2;
    }
    Ok(largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(most: usize, guess: usize, limit: usize) -> (usize, usize) {
        let mut probes = 0;
        let largest = largest(most, guess, |number| {
            probes += 1;
            Ok::<_, ()>(number <= limit)
        });
        (largest.unwrap(), probes)
    }

    #[test]
    fn largest_number_that_fits_is_found_from_any_guess() {
        for most in [1, 2, 7, 64] {
            for limit in 0..=most {
                for guess in 0..=most + 2 {
                    assert_eq!(found(most, guess, limit).0, limit, "{most} {guess}");
                }
            }
        }
    }

    #[test]
    fn good_guess_needs_few_probes() {
        assert!(found(1 << 20, 1000, 1000).1 <= 3);
        assert!(found(1 << 20, 1000, 1003).1 <= 6);
    }
}
