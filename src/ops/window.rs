//! Windows of convolutions and pooling.

use std::ops::Range;

use super::{TensorType, TypeError, expect_float};

/// A window that slides over images: kernel height and width, stride, zero padding on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub kernel: [usize; 2],
    pub stride: usize,
    pub padding: usize,
}

impl Window {
    /// Each pixel alone.
    pub const PIXEL: Window = Window { kernel: [1; 2], stride: 1, padding: 0 };

    /// All of an image of one column: the mean of a sequence.
    pub const fn column(positions: usize) -> Window {
        Window { kernel: [positions, 1], stride: 1, padding: 0 }
    }

    /// Output height and width of an image of this height and width: `floor((size + 2 padding - kernel) / stride) + 1`.
    /// `None` if the window does not fit, or if a kernel dimension or the stride is 0.
    pub fn output(&self, size: [usize; 2]) -> Option<[usize; 2]> {
        let along = |size: usize, kernel: usize| {
            if kernel == 0 {
                return None;
            }
            let padded = self.padding.checked_mul(2)?.checked_add(size)?;
            Some(padded.checked_sub(kernel)?.checked_div(self.stride)? + 1)
        };
        Some([along(size[0], self.kernel[0])?, along(size[1], self.kernel[1])?])
    }

    /// The shape [B, OH, OW, C] of the window's outputs for x num[B,H,W,C].
    pub(super) fn outputs(&self, operation: &'static str, x: &TensorType) -> Result<[usize; 4], TypeError> {
        expect_float(operation, "x", x)?;
        let &[batch, height, width, channels] = x.shape.dims() else {
            return Err(TypeError { operation, problem: format!("x is {x}, expected images [B, H, W, C]") });
        };
        let Some([places_down, places_across]) = self.output([height, width]) else {
            let Window { kernel: [down, across], stride, padding } = self;
            let window = format!("a {down} x {across} window with stride {stride} and padding {padding}");
            let problem = format!("{window} does not fit images of {height} x {width}");
            return Err(TypeError { operation, problem });
        };
        Ok([batch, places_down, places_across, channels])
    }

    /// Cells of the kernel.
    pub fn cells(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// The rows or columns of the kernel that lie within an image of `size` along this axis (0: height, 1: width), and the
    /// pixel under the first of them, for the output at `place`.
    #[inline]
    pub fn inside(&self, axis: usize, place: usize, size: usize) -> (Range<usize>, usize) {
        let start = place * self.stride;
        let first = self.padding.saturating_sub(start);
        let end = (size + self.padding).saturating_sub(start).min(self.kernel[axis]);
        (first..end.max(first), (start + first).saturating_sub(self.padding))
    }

    /// The outputs, of `places` along this axis (0: height, 1: width), whose window contains the pixel.
    #[inline]
    pub fn covering(&self, axis: usize, pixel: usize, places: usize) -> Range<usize> {
        let padded = pixel + self.padding;
        let first = (padded + 1).saturating_sub(self.kernel[axis]).div_ceil(self.stride);
        let end = (padded / self.stride + 1).min(places);
        first.min(end)..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_size_is_pytorchs() {
        let window = |kernel, stride, padding| Window { kernel, stride, padding };
        for (window, size, output) in [
            (window([3, 3], 1, 1), [32, 32], Some([32, 32])),
            (window([2, 2], 2, 0), [7, 9], Some([3, 4])),
            (window([7, 7], 2, 3), [224, 224], Some([112, 112])),
            (window([3, 5], 2, 1), [3, 3], Some([2, 1])),
            (window([4, 6], 1, 0), [4, 6], Some([1, 1])),
            (window([5, 3], 1, 0), [4, 6], None),
            (window([3, 0], 1, 0), [4, 6], None),
            (window([3, 3], 0, 0), [4, 6], None),
            (window([3, 3], 1, usize::MAX), [4, 6], None),
        ] {
            assert_eq!(window.output(size), output, "{window:?} on {size:?}");
        }
    }

    /// Both directions list the same pairs of output and pixel, with ascending kernel cells.
    #[test]
    fn cells_inside_an_image_match_the_windows_that_cover_its_pixels() {
        for (kernel, stride, padding, size) in
            [(1, 1, 0, 5), (3, 1, 1, 5), (3, 2, 1, 8), (2, 3, 0, 9), (5, 2, 4, 3), (7, 7, 0, 7), (2, 5, 3, 4)]
        {
            let window = Window { kernel: [1, kernel], stride, padding };
            let places = window.output([1, size]).expect("the window fits")[1];
            let mut covered = Vec::new();
            for place in 0..places {
                let (cells, first) = window.inside(1, place, size);
                for (index, cell) in cells.enumerate() {
                    assert_eq!(place * stride + cell, first + index + padding);
                    covered.push((first + index, place));
                }
            }
            covered.sort_unstable();
            let covering = (0..size)
                .flat_map(|pixel| window.covering(1, pixel, places).map(move |place| (pixel, place)));
            assert_eq!(covering.collect::<Vec<_>>(), covered, "{window:?} on {size}");
        }
    }
}
