//! Windows that slide over images.

/// A window that slides over images: kernel height and width, stride, and rows and columns of padding on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub kernel: [usize; 2],
    pub stride: usize,
    pub padding: usize,
}

impl Window {
    /// Each pixel alone.
    pub const PIXEL: Window = Window { kernel: [1; 2], stride: 1, padding: 0 };

    /// Height and width of the output; `None` if the window does not fit.
    pub fn output(&self, size: [usize; 2]) -> Option<[usize; 2]> {
        let along = |size: usize, kernel: usize| {
            Some((size + 2 * self.padding).checked_sub(kernel)? / self.stride + 1)
        };
        Some([along(size[0], self.kernel[0])?, along(size[1], self.kernel[1])?])
    }

    /// Cells of the kernel.
    pub fn cells(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_counts_the_places_of_the_window() {
        let output = |kernel, stride, padding, size| {
            Window { kernel: [kernel; 2], stride, padding }.output([size, size + 1])
        };
        assert_eq!(output(3, 1, 1, 8), Some([8, 9]));
        assert_eq!(output(3, 2, 1, 8), Some([4, 5]));
        assert_eq!(output(7, 2, 3, 224), Some([112, 113]));
        assert_eq!(output(2, 2, 0, 3), Some([1, 2]));
        assert_eq!(output(4, 1, 0, 3), None);
    }
}
