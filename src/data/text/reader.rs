//! Reads text files: gzip and Zstandard are decompressed, and a byte order mark is skipped.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use sha2::{Digest, Sha256};

use crate::DataError;
use crate::digest::{self, FileDigest};
use crate::error::count;
use crate::formats::{self, Compression};
use base::regular;
use base::units::Bytes;

/// The byte order mark of UTF-8.
pub(super) const MARK: &[u8] = b"\xef\xbb\xbf";

/// Bytes of a compressed file to read at a time.
const AT_ONCE: usize = 64 << 10;

/// The text of a file.
pub(super) struct TextReader {
    path: PathBuf,
    decoder: Decoder,
    /// The first bytes of the text.
    head: Cursor<Vec<u8>>,
    /// Number of bytes decoded.
    decoded: u64,
    /// Whether the text begins with a byte order mark.
    pub(super) is_marked: bool,
}

enum Decoder {
    Plain(HashedFile),
    Gzip(MultiGzDecoder<BufReader<HashedFile>>),
    Zstandard(Box<ZstandardDecoder<BufReader<HashedFile>>>),
}

impl TextReader {
    /// # Errors
    /// The file is unreadable, damaged, or not text.
    pub(super) fn open(path: &Path) -> Result<TextReader, DataError> {
        let compression = formats::check_text(path)?;
        let file = regular::open(path);
        let file = file.map_err(|error| DataError::Unreadable { path: path.to_owned(), error })?;
        let file = HashedFile { file, hash: Sha256::new(), bytes: 0 };
        let buffered = |file| BufReader::with_capacity(AT_ONCE, file);
        let decoder = match compression {
            None => Decoder::Plain(file),
            Some(Compression::Gzip) => Decoder::Gzip(MultiGzDecoder::new(buffered(file))),
            Some(Compression::Zstandard) => {
                Decoder::Zstandard(Box::new(ZstandardDecoder::new(buffered(file))))
            }
        };
        let mut reader = TextReader {
            path: path.to_owned(),
            decoder,
            head: Cursor::default(),
            decoded: 0,
            is_marked: false,
        };
        let mut head = Vec::new();
        let read = (&mut reader).take(formats::HEAD as u64).read_to_end(&mut head);
        read.map_err(|error| reader.failed(error))?;
        if compression.is_some() {
            formats::check_decompressed(path, &head)?;
        }
        reader.is_marked = head.starts_with(MARK);
        reader.head = Cursor::new(head);
        reader.head.set_position(if reader.is_marked { MARK.len() as u64 } else { 0 });
        Ok(reader)
    }

    /// Whether the file is compressed.
    pub(super) fn is_compressed(&self) -> bool {
        !matches!(self.decoder, Decoder::Plain(_))
    }

    /// Bytes read from the file so far.
    pub(super) fn stored(&self) -> u64 {
        self.file().bytes
    }

    /// The error of a failed read.
    pub(super) fn failed(&self, error: io::Error) -> DataError {
        let path = self.path.clone();
        // Errors of the system have its number.
        if !self.is_compressed() || error.raw_os_error().is_some() {
            return DataError::Unreadable { path, error };
        }
        let (format, program) = self.format();
        let file = format!("{:?}", path.display().to_string());
        let own = error.get_ref().and_then(|error| error.downcast_ref());
        let (problem, help) = match own {
            Some(Undecoded::Window(bytes)) => (
                format!(
                    "is a {format} with a window of {}; the maximum is {}",
                    Bytes(*bytes),
                    LARGEST_WINDOW
                ),
                format!("decompress it: zstd -d --long=31 {file}"),
            ),
            Some(Undecoded::Dictionary) => (
                format!("is a {format} that was compressed with a dictionary, which runner does not read"),
                format!("decompress it: zstd -d -D DICTIONARY {file}"),
            ),
            own => {
                let message = error.to_string();
                // The decoders have no codes for these errors.
                let reason = match () {
                    () if error.kind() == io::ErrorKind::UnexpectedEof => "its end is missing",
                    () if own.is_some() || message.contains("checksum") => "its checksum does not match",
                    () if message.contains("header") => "it has an invalid header",
                    () => "its data is invalid",
                };
                let after = count(self.decoded, "byte");
                (
                    format!("is a damaged {format}: {reason}, after {after} of text"),
                    format!("copy or download it again, and test it: {program} -t {file}"),
                )
            }
        };
        DataError::Unfit { path, problem, help }
    }

    /// The digest of the file as stored, read to its end.
    ///
    /// # Errors
    /// The rest of the file is unreadable.
    pub(super) fn digest(mut self) -> Result<FileDigest, DataError> {
        let read = io::copy(self.file_mut(), &mut io::sink());
        read.map_err(|error| self.failed(error))?;
        let HashedFile { hash, bytes, .. } = self.file();
        Ok(FileDigest { bytes: *bytes, sha256: digest::hex(&hash.clone().finalize()) })
    }

    /// The format, and the program that decompresses it.
    fn format(&self) -> (&'static str, &'static str) {
        match self.decoder {
            Decoder::Plain(_) => ("text file", "cat"),
            Decoder::Gzip(_) => ("gzip file", "gzip"),
            Decoder::Zstandard(_) => ("Zstandard file", "zstd"),
        }
    }

    fn file(&self) -> &HashedFile {
        match &self.decoder {
            Decoder::Plain(file) => file,
            Decoder::Gzip(decoder) => decoder.get_ref().get_ref(),
            Decoder::Zstandard(decoder) => decoder.from.get_ref(),
        }
    }

    fn file_mut(&mut self) -> &mut HashedFile {
        match &mut self.decoder {
            Decoder::Plain(file) => file,
            Decoder::Gzip(decoder) => decoder.get_mut().get_mut(),
            Decoder::Zstandard(decoder) => decoder.from.get_mut(),
        }
    }
}

impl Read for TextReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let head = self.head.read(to)?;
        if head > 0 || to.is_empty() {
            return Ok(head);
        }
        let read = match &mut self.decoder {
            Decoder::Plain(file) => file.read(to),
            Decoder::Gzip(decoder) => decoder.read(to),
            Decoder::Zstandard(decoder) => decoder.read(to),
        };
        self.decoded += *read.as_ref().unwrap_or(&0) as u64;
        read
    }
}

/// A file, and the digest of what was read of it.
struct HashedFile {
    file: File,
    hash: Sha256,
    bytes: u64,
}

impl Read for HashedFile {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(to)?;
        self.hash.update(&to[..count]);
        self.bytes += count as u64;
        Ok(count)
    }
}

/// Why a frame cannot be decoded, if it is not malformed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("{self:?}")]
enum Undecoded {
    Window(u64),
    Dictionary,
    Checksum,
}

/// The decoder's limit.
const LARGEST_WINDOW: Bytes = Bytes(100 << 20);

/// Decodes the frames of a Zstandard file one after the other.
struct ZstandardDecoder<R> {
    from: R,
    decoder: FrameDecoder,
    is_in_frame: bool,
}

/// An empty frame with a window of 1 KiB. The decoder limits windows of all frames but the first.
const EMPTY_FRAME: &[u8] = b"\x28\xb5\x2f\xfd\0\0";

impl<R: BufRead> ZstandardDecoder<R> {
    fn new(from: R) -> ZstandardDecoder<R> {
        let mut decoder = FrameDecoder::new();
        // Cannot fail: the frame is valid.
        let _ = decoder.init(EMPTY_FRAME);
        ZstandardDecoder { from, decoder, is_in_frame: false }
    }

    /// Begins the next frame; false at the end of the file.
    fn begin_frame(&mut self) -> io::Result<bool> {
        use FrameDecoderError::{DictNotProvided, ReadFrameHeaderError as Header, WindowSizeTooBig};
        while !self.from.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.from) {
                Ok(()) => return Ok(true),
                Err(Header(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut (&mut self.from).take(length.into()), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(WindowSizeTooBig { requested }) => {
                    return Err(io::Error::other(Undecoded::Window(requested)));
                }
                Err(DictNotProvided { .. }) => return Err(io::Error::other(Undecoded::Dictionary)),
                Err(error) => return Err(io::Error::other(error.to_string())),
            }
        }
        Ok(false)
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.is_in_frame = false;
        match self.decoder.get_checksum_from_data() {
            Some(stored) if self.decoder.get_calculated_checksum() != Some(stored) => {
                Err(io::Error::other(Undecoded::Checksum))
            }
            _ => Ok(()),
        }
    }
}

impl<R: BufRead> Read for ZstandardDecoder<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_in_frame {
                self.is_in_frame = self.begin_frame()?;
                if !self.is_in_frame {
                    return Ok(0);
                }
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let decoded =
                    self.decoder.decode_blocks(&mut self.from, BlockDecodingStrategy::UptoBlocks(1));
                decoded.map_err(|error| match self.from.fill_buf() {
                    Ok([]) => io::ErrorKind::UnexpectedEof.into(),
                    _ => io::Error::other(error.to_string()),
                })?;
            }
            let count = self.decoder.read(to)?;
            if count > 0 {
                return Ok(count);
            }
            self.end_frame()?;
        }
    }
}
