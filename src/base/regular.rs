//! Reading of regular files. Pipes, sockets and devices are refused, because reading them may block forever.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Take};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::units::Bytes;

/// The size limit of text files, which are read completely and take many times their size when parsed.
const LONGEST_TEXT: Bytes = Bytes(1 << 20);

/// Opens a file for reading.
///
/// # Errors
/// The file cannot be opened, or is a pipe, socket or device.
pub fn open(path: &Path) -> io::Result<File> {
    // Checked before opening, because opening may block or affect a device.
    refuse_special_file(fs::metadata(path)?.file_type())?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    refuse_special_file(file.metadata()?.file_type())?;
    Ok(file)
}

/// Opens a file of at most `most` bytes for reading. Bytes added after the check are not read.
///
/// # Errors
/// Those of [`open`], and a file larger than `most`.
pub fn open_up_to(path: &Path, most: Bytes) -> io::Result<Take<Uninterrupted>> {
    let file = open(path)?;
    let found = file.metadata()?;
    if found.is_file() && found.len() > most.0 {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {most}")));
    }
    Ok(Uninterrupted(file).take(most.0))
}

/// A file whose reads are repeated if a signal interrupts them.
#[derive(Debug)]
pub struct Uninterrupted(File);

impl Read for Uninterrupted {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(to) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

/// Reads a file of at most `most` bytes.
///
/// # Errors
/// Those of [`open_up_to`].
pub fn read(path: &Path, most: Bytes) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    open_up_to(path, most)?.read_to_end(&mut contents)?;
    Ok(contents)
}

/// Reads a text file of at most 1 MiB.
///
/// # Errors
/// Those of [`open_up_to`], and text that is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    io::read_to_string(open_up_to(path, LONGEST_TEXT)?)
}

/// Whether the path is a regular file. `false` if it does not exist.
///
/// # Errors
/// The file's metadata cannot be read.
pub fn is_file(path: &Path) -> io::Result<bool> {
    Ok(kind(path)?.is_some_and(|kind| kind.is_file()))
}

/// Whether the path is a folder. `false` if it does not exist.
///
/// # Errors
/// The folder's metadata cannot be read.
pub fn is_folder(path: &Path) -> io::Result<bool> {
    Ok(kind(path)?.is_some_and(|kind| kind.is_dir()))
}

/// Why a file cannot be read: our own message, or the system's without its number.
#[must_use]
pub fn reason(error: &io::Error) -> String {
    match error.kind() {
        _ if error.get_ref().is_some() => error.to_string(),
        io::ErrorKind::NotFound => "there is no such file".into(),
        io::ErrorKind::InvalidData => "it is not UTF-8 text".into(),
        io::ErrorKind::IsADirectory => "it is a folder".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        _ => error.to_string(),
    }
}

fn kind(path: &Path) -> io::Result<Option<fs::FileType>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.file_type())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn refuse_special_file(kind: fs::FileType) -> io::Result<()> {
    let found = match () {
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => return Ok(()),
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {found}; only a file can be read")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    #[test]
    fn pipes_sockets_and_devices_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "text").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        std::os::unix::fs::symlink("pipe", at("link to a pipe")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        let read = |path: &Path| read(path, Bytes(4));
        assert_eq!(read(&at("file")).unwrap(), b"text");
        assert_eq!(read_to_string(&at("link")).unwrap(), "text");
        let refused = |path: &Path| read(path).unwrap_err().to_string();
        assert_eq!(refused(&at("pipe")), "it is a pipe; only a file can be read");
        assert_eq!(refused(&at("link to a pipe")), "it is a pipe; only a file can be read");
        assert_eq!(refused(&at("socket")), "it is a socket; only a file can be read");
        assert_eq!(refused(Path::new("/dev/zero")), "it is a device; only a file can be read");
        assert_eq!(read(folder.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(read(&at("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    /// A sparse file may have a size above the memory of the machine.
    #[test]
    fn oversized_files_are_refused_before_reading() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = File::create(&path).unwrap();
        file.set_len(LONGEST_TEXT.0).unwrap();
        assert_eq!(read_to_string(&path).unwrap().len() as u64, LONGEST_TEXT.0);
        for length in [LONGEST_TEXT.0 + 1, 1 << 40] {
            file.set_len(length).unwrap();
            let error = read_to_string(&path).unwrap_err();
            assert_eq!(error.to_string(), "it is larger than 1.00 MiB");
        }
    }
}
