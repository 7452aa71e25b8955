//! From pixels in u8 to the numbers of an input: normalised, and changed at random for training.

use super::samples::InputMemory;
use super::sampling::{mixed, scale};
use ops::PixelScale;

/// How pixels become an input.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pixels {
    /// Subtracted from numbers from 0 to 1, per channel; empty: 0.
    pub mean: Vec<f32>,
    /// Divides the difference, per channel; empty: 1.
    pub deviation: Vec<f32>,
    /// In training: pixels of zeros that are added on each side before an image of the old size is cut out at random.
    pub crop: usize,
    /// In training: mirror every second image, at random.
    pub flips: bool,
}

/// The part of an image, padded with zeros, that is read: where it begins, and whether it is mirrored.
#[derive(Clone, Copy, Debug, PartialEq)]
struct View {
    /// Rows and columns that are skipped; negative: of padding.
    top: isize,
    left: isize,
    is_mirrored: bool,
}

impl Pixels {
    /// Whether training samples are changed at random.
    pub(super) fn augments(&self) -> bool {
        self.crop > 0 || self.flips
    }

    /// The numbers of pixels.
    pub(super) fn scale(&self) -> PixelScale {
        let of_channels =
            |list: &[f32], usual| std::array::from_fn(|channel| list.get(channel).copied().unwrap_or(usual));
        let channels = if self.mean.is_empty() && self.deviation.is_empty() {
            1
        } else {
            self.mean.len().max(self.deviation.len())
        };
        PixelScale::Normalised {
            mean: of_channels(&self.mean, 0.0),
            deviation: of_channels(&self.deviation, 1.0),
            channels,
        }
    }

    /// The view of a training sample: a pure function of its random number. `None`: an evaluation sample, as it is.
    fn view(&self, draw: Option<u64>) -> View {
        let Some(draw) = draw else { return View { top: 0, left: 0, is_mirrored: false } };
        let offset = |site| scale(mixed(draw, site), 2 * self.crop as u64 + 1) as isize - self.crop as isize;
        View { top: offset(0), left: offset(1), is_mirrored: self.flips && mixed(draw, 2) >> 63 == 1 }
    }

    /// Fills an input of shape `[C, H, W]` from its pixels in the same order: normalised in numbers, as they are in u8.
    pub(super) fn fill(&self, pixels: &[u8], size: [usize; 2], draw: Option<u64>, input: InputMemory<'_>) {
        match input {
            InputMemory::Pixels(input) => {
                self.view(draw).copy(pixels, size, input, |_| |pixel| pixel);
            }
            InputMemory::Numbers(input) => self.view(draw).copy(pixels, size, input, |channel| {
                let scale = self.scale();
                move |pixel| scale.number(channel, pixel).to_ne_bytes()
            }),
            InputMemory::Ids { .. } => unreachable!("checked: pixels are no ids"),
        }
    }
}

impl View {
    /// Copies the view of an image, each pixel converted by the function of its channel.
    fn copy<T, F: Fn(u8) -> T>(
        self,
        pixels: &[u8],
        [height, width]: [usize; 2],
        output: &mut [T],
        of_channel: impl Fn(usize) -> F,
    ) {
        let View { top, left, is_mirrored } = self;
        let inside = |at: usize, skipped: isize, size: usize| {
            at.checked_add_signed(skipped).filter(|place| *place < size)
        };
        let rows = output.chunks_exact_mut(width.max(1)).enumerate();
        for (row, converted) in rows {
            let (channel, y) = (row / height, row % height);
            let convert = of_channel(channel);
            let source = inside(y, top, height).map(|y| &pixels[(channel * height + y) * width..][..width]);
            for (x, converted) in converted.iter_mut().enumerate() {
                let x = if is_mirrored { width - 1 - x } else { x };
                let pixel = source.and_then(|source| Some(source[inside(x, left, width)?])).unwrap_or(0);
                *converted = convert(pixel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two channels of two rows of three pixels.
    const PIXELS: [u8; 12] = [10, 20, 30, 40, 50, 60, 110, 120, 130, 140, 150, 160];

    fn filled(pixels: &Pixels, draw: Option<u64>) -> Vec<f32> {
        let mut input = [[1; 4]; 12];
        pixels.fill(&PIXELS, [2, 3], draw, InputMemory::Numbers(&mut input));
        input.iter().map(|number| f32::from_ne_bytes(*number)).collect()
    }

    /// The same as bytes, of pixels that are not normalised; in u8 they are equal.
    fn pixels(pixels: &Pixels, draw: Option<u64>) -> Vec<u8> {
        let mut input = [1; 12];
        pixels.fill(&PIXELS, [2, 3], draw, InputMemory::Pixels(&mut input));
        let numbers: Vec<u8> =
            filled(pixels, draw).into_iter().map(|number| (number * 255.0).round() as u8).collect();
        assert_eq!(input[..], numbers);
        numbers
    }

    #[test]
    fn channels_are_normalised() {
        let normalised = Pixels { mean: vec![0.5, 0.25], deviation: vec![0.5, 2.0], ..Pixels::default() };
        let expected: Vec<f32> = PIXELS
            .iter()
            .enumerate()
            .map(|(at, pixel)| match (at / 6, f32::from(*pixel) / 255.0) {
                (0, number) => (number - 0.5) / 0.5,
                (_, number) => (number - 0.25) / 2.0,
            })
            .collect();
        assert_eq!(filled(&normalised, None), expected);
        assert_eq!(filled(&Pixels { crop: 4, flips: true, ..normalised }, None), expected, "as it is");
    }

    #[test]
    fn mirrored_and_cropped_images_are_parts_of_the_padded_one() {
        let crop = Pixels { crop: 1, flips: true, ..Pixels::default() };
        let mut seen = std::collections::HashSet::new();
        for draw in 0..400 {
            let View { top, left, is_mirrored } = crop.view(Some(mixed(draw, 7)));
            let at = |channel: isize, y: isize, x: isize| {
                let (y, x) = (y + top, x + left);
                let is_inside = (0..2).contains(&y) && (0..3).contains(&x);
                if is_inside { PIXELS[(channel * 6 + y * 3 + x) as usize] } else { 0 }
            };
            let expected: Vec<u8> = (0..12)
                .map(|place| (place / 6, place / 3 % 2, place % 3))
                .map(|(channel, y, x)| at(channel, y, if is_mirrored { 2 - x } else { x }))
                .collect();
            let found = pixels(&crop, Some(mixed(draw, 7)));
            assert_eq!(found, expected);
            assert_eq!(found, pixels(&crop, Some(mixed(draw, 7))), "a pure function");
            seen.insert((top, left, is_mirrored));
        }
        assert_eq!(seen.len(), 18, "every offset, mirrored and not");
        let plain = Pixels::default();
        assert!((0..50).all(|draw| pixels(&plain, Some(draw)) == PIXELS));
    }
}
