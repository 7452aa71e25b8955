//! Keys of images, which several kinds of data share.

use crate::reader::declare::Optional;
use crate::reader::error::Problem;
use crate::reader::list::List;
use crate::reader::parsers::{FloatRange, SHARE, SHARE_OR_NONE, UsizeRange};
use crate::reader::tree::Table;
use crate::schema::rules::attach_span;
use data::Pixels;

/// Means of channels.
pub(super) const MEAN: List<FloatRange> =
    List { of: "numbers", example: "[0.1307]", may_be_empty: true, may_repeat: true, element: SHARE_OR_NONE };

/// Standard deviations of channels.
pub(super) const DEVIATION: List<FloatRange> =
    List { of: "numbers", example: "[0.3081]", may_be_empty: true, may_repeat: true, element: SHARE };

/// Pixels of padding for random crops.
pub(super) const CROP: Optional<UsizeRange> = Optional(UsizeRange(1..=1 << 10));

/// The values of the keys `mean`, `std`, `crop` and `flip`.
pub(super) fn pixels(mean: &[f64], std: &[f64], crop: Option<usize>, flip: bool) -> Pixels {
    let narrow = |numbers: &[f64]| numbers.iter().map(|number| *number as f32).collect();
    Pixels { mean: narrow(mean), deviation: narrow(std), crop: crop.unwrap_or(0), flips: flip }
}

/// Fails unless each channel has a mean and a deviation, or none has.
pub(super) fn check(
    table: &str,
    (mean, std): (&[f64], &[f64]),
    channels: usize,
    tree: &Table,
) -> Result<(), Problem> {
    for (key, found) in [("mean", mean.len()), ("std", std.len())] {
        if found == 0 || found == channels {
            continue;
        }
        let of = if channels == 1 { "one channel" } else { "three channels" };
        let numbers = if found == 1 { "number" } else { "numbers" };
        let message = format!("{key} has {found} {numbers}, but the images of {table} have {of}");
        let help = match channels {
            1 => "use one number".to_owned(),
            _ => format!("use {channels} numbers, one for each channel"),
        };
        return Err(attach_span(message, &[&format!("{table}.{key}")], tree, help));
    }
    Ok(())
}
