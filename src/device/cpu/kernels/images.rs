//! Images [B,H,W,C], pixel by pixel. A sequence [B,T,C] is an image of one column, and its mean [B,C] one of one pixel.

use std::ops::Range;

use ops::{Shape, Window};

use super::float::Float;
use super::operands::Addend;
use super::workers::{SharedSlice, Workers};

/// Element operations per task: fixed, so that results do not depend on the number of threads.
const WORK_PER_TASK: usize = 1 << 14;

/// Dimensions of images.
#[derive(Clone, Copy)]
pub(super) struct Images {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) channels: usize,
}

/// A pixel of an image.
#[derive(Clone, Copy)]
pub(super) struct Pixel {
    image: usize,
    row: usize,
    column: usize,
}

/// A pixel under a window, or a window over a pixel.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    /// The index of the kernel's cell, row by row.
    pub(super) cell: usize,
    /// Whether it is the first cell of a row of the kernel.
    pub(super) is_first_of_row: bool,
    /// The first element of the other image's pixel.
    start: usize,
}

impl Cell {
    /// These channels of the other image's pixel.
    pub(super) fn elements(&self, channels: &Range<usize>) -> Range<usize> {
        self.start + channels.start..self.start + channels.end
    }
}

impl Images {
    pub(super) fn new(shape: &Shape) -> Images {
        match *shape.dims() {
            [_, height, width, channels] => Images { height, width, channels },
            [_, height, channels] => Images { height, width: 1, channels },
            [_, channels] => Images { height: 1, width: 1, channels },
            _ => unreachable!("an operation's types are checked before it runs"),
        }
    }

    /// Calls `work(pixel, its elements in output, its elements in the second output)` for each pixel, with about this
    /// much work per element. The second output may be empty.
    pub(super) fn for_each_pixel<T: Send, U: Send>(
        self,
        output: &mut [T],
        second: &mut [U],
        work_per_element: usize,
        workers: &Workers,
        work: impl Fn(Pixel, &mut [T], &mut [U]) + Sync,
    ) {
        let Images { height, width, channels } = self;
        let pixels = output.len() / channels;
        let has_second = !second.is_empty();
        let (output, second) = (SharedSlice::new(output), SharedSlice::new(second));
        let per_task = (WORK_PER_TASK / (channels * work_per_element).max(1)).max(1);
        workers.for_each_chunk(pixels, per_task, |pixels| {
            for index in pixels {
                let place = Pixel {
                    image: index / (height * width),
                    row: index / width % height,
                    column: index % width,
                };
                let elements = index * channels..(index + 1) * channels;
                let of_second = if has_second { elements.clone() } else { 0..0 };
                // SAFETY: pixels do not overlap.
                #[allow(unsafe_code)]
                let (output, second) = unsafe { (output.range_mut(elements), second.range_mut(of_second)) };
                work(place, output, second);
            }
        });
    }

    /// The pixels of these images under the window at `place`, in the order of the kernel's cells.
    pub(super) fn under(self, window: &Window, place: Pixel) -> impl Iterator<Item = Cell> {
        let (rows, top) = window.inside(0, place.row, self.height);
        let (columns, left) = window.inside(1, place.column, self.width);
        let width = window.kernel[1];
        rows.enumerate().flat_map(move |(down, row)| {
            columns.clone().enumerate().map(move |(across, column)| Cell {
                cell: row * width + column,
                is_first_of_row: across == 0,
                start: self.start(place.image, top + down, left + across),
            })
        })
    }

    /// The windows that cover this pixel, where these images are the windows' outputs.
    pub(super) fn over(self, window: &Window, pixel: Pixel) -> impl Iterator<Item = Cell> {
        let rows = window.covering(0, pixel.row, self.height);
        let columns = window.covering(1, pixel.column, self.width);
        let Window { kernel: [_, width], stride, padding } = *window;
        rows.flat_map(move |row| {
            let first = columns.start;
            columns.clone().map(move |column| Cell {
                cell: (pixel.row + padding - row * stride) * width + pixel.column + padding - column * stride,
                is_first_of_row: column == first,
                start: self.start(pixel.image, row, column),
            })
        })
    }

    /// Initializes a pixel of an output to which a result is added.
    pub(super) fn start_from<T: Float>(self, addend: Addend<T>, pixel: Pixel, output: &mut [T]) {
        match addend {
            Addend::Zero => output.fill(T::default()),
            Addend::Output => {}
            Addend::Input(previous) => {
                let start = self.start(pixel.image, pixel.row, pixel.column);
                output.copy_from_slice(&previous[start..start + self.channels]);
            }
        }
    }

    /// The first element of a pixel.
    fn start(self, image: usize, row: usize, column: usize) -> usize {
        ((image * self.height + row) * self.width + column) * self.channels
    }
}
