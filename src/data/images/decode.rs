//! Decodes image files to pixels of the model's shape.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use image::imageops::FilterType;
use image::{ImageError, ImageFormat, ImageReader};

use crate::DataError;
use crate::digest::Version;
use base::regular;

/// Opens a file; returns it with its version.
fn open(path: &Path) -> Result<(ImageReader<BufReader<File>>, Version), DataError> {
    let unreadable = |error| DataError::Unreadable { path: path.to_owned(), error };
    let file = regular::open(path).map_err(unreadable)?;
    let version = Version::of(&file.metadata().map_err(unreadable)?);
    let reader = ImageReader::new(BufReader::new(file)).with_guessed_format().map_err(unreadable)?;
    match reader.format() {
        Some(ImageFormat::Png | ImageFormat::Jpeg) => Ok((reader, version)),
        _ => Err(unfit(path, "is neither a PNG nor a JPEG file, as its first bytes show".to_owned())),
    }
}

/// Checks that the header of a file is that of an image.
///
/// # Errors
/// The file is unreadable or damaged.
pub(super) fn check(path: &Path) -> Result<(), DataError> {
    let (reader, _) = open(path)?;
    reader.into_dimensions().map(|_| ()).map_err(|error| failed(path, error))
}

/// The pixels of an image, `[C, H, W]`: scaled until it covers the shape, then cut at its centre. One channel: shades of grey.
///
/// # Errors
/// The file is unreadable or damaged, or has another version.
pub(super) fn pixels(
    path: &Path,
    version: &Version,
    [channels, height, width]: [usize; 3],
) -> Result<Vec<u8>, DataError> {
    let (reader, found) = open(path)?;
    if found != *version {
        return Err(DataError::Changed { path: path.to_owned() });
    }
    let decoded = reader.decode().map_err(|error| failed(path, error))?;
    // Bilinear; also over the pixels between when an image shrinks.
    let resized = match (decoded.width() as usize, decoded.height() as usize) {
        size if size == (width, height) => decoded,
        _ => decoded.resize_to_fill(width as u32, height as u32, FilterType::Triangle),
    };
    // From [H, W, C].
    let interleaved =
        if channels == 1 { resized.into_luma8().into_raw() } else { resized.into_rgb8().into_raw() };
    let planes = (0..channels).flat_map(|channel| interleaved.iter().skip(channel).step_by(channels));
    Ok(planes.copied().collect())
}

fn failed(path: &Path, error: ImageError) -> DataError {
    match error {
        ImageError::IoError(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
            DataError::Unreadable { path: path.to_owned(), error }
        }
        error => unfit(path, format!("cannot be decoded: {error}")),
    }
}

fn unfit(path: &Path, problem: String) -> DataError {
    let help = "the file is damaged or of another format: remove it, or save it again".to_owned();
    DataError::Unfit { path: path.to_owned(), problem, help }
}
