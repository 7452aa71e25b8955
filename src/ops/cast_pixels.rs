//! Conversion of pixels to numbers.

use super::{DType, Operation, TensorType, TypeError, expect_inputs, expect_type};

/// The number of each pixel.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum PixelScale {
    /// `x * factor`.
    Factor(f32),
    /// `(x / 255 - mean[c]) / deviation[c]` for pixels of channel c, of which a sample has `channels`, one after the other.
    Normalised {
        mean: [f32; PixelScale::MOST_CHANNELS],
        deviation: [f32; PixelScale::MOST_CHANNELS],
        channels: usize,
    },
}

impl PixelScale {
    /// Of an image.
    pub const MOST_CHANNELS: usize = 3;

    /// The number of a pixel. Without fused operations, so that all devices compute the same.
    #[inline]
    pub fn number(&self, channel: usize, pixel: u8) -> f32 {
        let pixel = f32::from(pixel);
        match self {
            PixelScale::Factor(factor) => pixel * factor,
            // In the order of torchvision's `ToTensor` and `Normalize`.
            PixelScale::Normalised { mean, deviation, .. } => {
                (pixel / 255.0 - mean[channel]) / deviation[channel]
            }
        }
    }

    /// The number of channels; 1 if all pixels are scaled alike.
    pub fn channels(&self) -> usize {
        match *self {
            PixelScale::Factor(_) => 1,
            PixelScale::Normalised { channels, .. } => channels,
        }
    }
}

/// Converts the pixels of samples to f32.
///
/// Inputs: u8[B, ...] and, optionally, the weights of the samples, f32[B]: a sample of weight 0 is missing, and becomes zeros.
/// Output: f32, of the shape of the pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CastPixels {
    pub scale: PixelScale,
}

impl Operation for CastPixels {
    fn name(&self) -> &'static str {
        "cast_pixels"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let has_weights = inputs.len() == 2;
        expect_inputs(self.name(), inputs, 1 + usize::from(has_weights))?;
        let pixels = &inputs[0];
        let samples = pixels.shape.dims().first().copied().unwrap_or(0);
        let channels = self.scale.channels();
        let fits = samples > 0 && (pixels.elements() / samples).is_multiple_of(channels.max(1));
        if pixels.dtype != DType::U8 || !fits {
            let problem = format!("expected u8 of samples with {channels} channels, got {pixels}");
            return Err(TypeError { operation: self.name(), problem });
        }
        if has_weights {
            expect_type(self.name(), "the weights", &inputs[1], TensorType::f32(&[samples]))?;
        }
        Ok(vec![TensorType { dtype: DType::F32, ..*pixels }])
    }
}
