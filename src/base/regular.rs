//! Files that hold something: a pipe, a socket or a device, where one is expected, would be waited for without end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Take};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::units::Bytes;

/// Of what is read whole before it is understood, and takes many times its size then.
const LONGEST_TEXT: Bytes = Bytes(1 << 20);

/// Opens a file to read it.
///
/// # Errors
/// Nothing can be read there, or not to its end.
pub fn open(path: &Path) -> io::Result<File> {
    // Before it is opened: that alone may wait, or do something to a device.
    refuse(fs::metadata(path)?.file_type())?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    refuse(file.metadata()?.file_type())?;
    Ok(file)
}

/// Opens a file of at most so many bytes to read it. What grows after that is cut.
///
/// # Errors
/// As those of [`open`], and a file that holds more.
pub fn open_up_to(path: &Path, most: Bytes) -> io::Result<Take<File>> {
    let file = open(path)?;
    let found = file.metadata()?;
    if found.is_file() && found.len() > most.0 {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it holds more than {most}")));
    }
    Ok(file.take(most.0))
}

/// What a file of at most so many bytes holds.
///
/// # Errors
/// As those of [`open_up_to`].
pub fn read(path: &Path, most: Bytes) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    open_up_to(path, most)?.read_to_end(&mut contents)?;
    Ok(contents)
}

/// The text that somebody wrote into a file: no more than anybody would.
///
/// # Errors
/// As those of [`open_up_to`], and text that is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    io::read_to_string(open_up_to(path, LONGEST_TEXT)?)
}

/// Whether a path leads to a file. One that leads nowhere does not.
///
/// # Errors
/// The system does not say.
pub fn is_file(path: &Path) -> io::Result<bool> {
    Ok(kind(path)?.is_some_and(|kind| kind.is_file()))
}

/// Whether a path leads to a folder. One that leads nowhere does not.
///
/// # Errors
/// The system does not say.
pub fn is_folder(path: &Path) -> io::Result<bool> {
    Ok(kind(path)?.is_some_and(|kind| kind.is_dir()))
}

fn kind(path: &Path) -> io::Result<Option<fs::FileType>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.file_type())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn refuse(kind: fs::FileType) -> io::Result<()> {
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
    fn what_may_have_no_end_is_refused() {
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

    /// A file may say that it holds more than there is memory, and take no room for it.
    #[test]
    fn what_is_too_long_is_refused_before_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = File::create(&path).unwrap();
        file.set_len(LONGEST_TEXT.0).unwrap();
        assert_eq!(read_to_string(&path).unwrap().len() as u64, LONGEST_TEXT.0);
        for length in [LONGEST_TEXT.0 + 1, 1 << 40] {
            file.set_len(length).unwrap();
            let error = read_to_string(&path).unwrap_err();
            assert_eq!(error.to_string(), "it holds more than 1.00 MiB");
        }
    }
}
