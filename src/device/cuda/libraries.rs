//! Finds the driver, NVRTC and cuBLASLt, and loads them.
//!
//! cudarc asks the loader for each by its bare name, and panics if there is none. So each is asked for here first: in
//! the loader's path, then where toolkits and Python environments keep them. One that is found elsewhere is loaded by
//! its path; the loader then answers to its bare name with the same library.
//!
//! Libraries open others by bare names, too, and not all of them look beside themselves, as `readelf -d` tells of those
//! on PyPI. NVRTC opens its builtins when it compiles: 13.5.37 has an RPATH of `$ORIGIN`, 12.9.86 a RUNPATH, and 13.0.88
//! neither. cuBLASLt 13.1.0.3 and 12.9.1.4 need nothing that a system with a driver does not have, and open the driver and
//! `libnvrtc.so` of their own major; they have a RUNPATH of `$ORIGIN`. NVRTC is loaded before them, builtins and all, and
//! answers to that name.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::unavailable::{MissingLibrary, Version};

/// A library that the CUDA device needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    Driver,
    Nvrtc,
    CublasLt,
}

/// The majors of CUDA whose libraries are looked for, newest first.
const MAJORS: [u32; 2] = [13, 12];

impl Library {
    fn what(self) -> &'static str {
        match self {
            Library::Driver => "the CUDA driver",
            Library::Nvrtc => "NVRTC, which compiles kernels,",
            Library::CublasLt => "cuBLASLt, which multiplies matrices,",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Library::Driver => {
                "install NVIDIA's driver, or let the container see its host's, or use `--device cpu`"
            }
            Library::Nvrtc => "`pip install nvidia-cuda-nvrtc` or the CUDA toolkit provides it",
            Library::CublasLt => "`pip install nvidia-cublas` or the CUDA toolkit provides it",
        }
    }

    fn stem(self) -> &'static str {
        match self {
            Library::Driver => "libcuda.so",
            Library::Nvrtc => "libnvrtc.so",
            Library::CublasLt => "libcublasLt.so",
        }
    }

    /// File names, best first. A driver cannot use libraries of a newer major than its own.
    fn files(self, newest: u32) -> Vec<String> {
        match self {
            Library::Driver => vec![format!("{}.1", self.stem())],
            _ => {
                let majors = MAJORS.into_iter().filter(|major| *major <= newest);
                majors.map(|major| format!("{}.{major}", self.stem())).collect()
            }
        }
    }

    /// Whether the loader has it.
    fn is_present(self) -> bool {
        // SAFETY: loading runs the library's initialisers: these are NVIDIA's own, or a stand-in put in their place on
        // purpose.
        unsafe {
            match self {
                Library::Driver => cudarc::driver::sys::is_culib_present(),
                Library::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
                Library::CublasLt => cudarc::cublaslt::sys::is_culib_present(),
            }
        }
    }

    /// Where the loaded one came from, as the system tells.
    pub(super) fn path(self) -> Option<PathBuf> {
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        let paths = maps.lines().filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
        let mut named = paths.filter(|path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(self.stem()))
        });
        named.next().map(Path::to_path_buf)
    }
}

/// Makes sure that calls into a library find it, of no newer major of CUDA than `newest` where there is a choice.
pub(super) fn load(library: Library, newest: u32) -> Result<(), MissingLibrary> {
    if library.is_present() {
        return Ok(());
    }
    let mut files = library.files(newest);
    let places = if library == Library::Driver { Vec::new() } else { places(&|name| env::var(name).ok()) };
    let mut searched = vec![loader_path()];
    for place in &places {
        for found in files.iter().flat_map(|file| place.find(file)) {
            // SAFETY: as in `is_present`.
            match unsafe { libloading::Library::new(&found) } {
                Ok(handle) => {
                    // cudarc may ask for it at any time until the process ends.
                    std::mem::forget(handle);
                    if library.is_present() {
                        return Ok(());
                    }
                }
                Err(error) => searched.push(format!("{} (cannot be loaded: {error})", found.display())),
            }
        }
        searched.push(place.to_string());
    }
    let driver = library == Library::Driver;
    if let (false, Some(last)) = (driver || newest >= MAJORS[0], files.last_mut()) {
        last.push_str(" (the driver cannot use a newer one)");
    }
    Err(MissingLibrary { what: library.what(), files, places: searched, advice: library.advice(), driver })
}

/// What NVRTC opens when it compiles.
pub(super) fn builtins(nvrtc: Version) -> String {
    format!("libnvrtc-builtins.so.{nvrtc}")
}

/// Loads NVRTC's builtins, which lie beside it, so that it need not look for them. NVRTC is loaded.
///
/// # Errors
/// Why that cannot be, as a part of a sentence. NVRTC may find them all the same, elsewhere in the loader's path.
pub(super) fn load_builtins(nvrtc: Version) -> Result<(), String> {
    let library = Library::Nvrtc.path().ok_or("the system does not tell where NVRTC lies")?;
    let file = beside(&library, &builtins(nvrtc))?;
    // SAFETY: as in `is_present`.
    let handle = unsafe { libloading::Library::new(&file) };
    // NVRTC may ask for it at any time until the process ends.
    handle.map(std::mem::forget).map_err(|error| format!("{} cannot be loaded: {error}", file.display()))
}

fn beside(library: &Path, file: &str) -> Result<PathBuf, String> {
    let folder = library.parent().unwrap_or(Path::new("/"));
    let path = folder.join(file);
    if path.is_file() { Ok(path) } else { Err(format!("there is none in {}", folder.display())) }
}

fn loader_path() -> String {
    match env::var("LD_LIBRARY_PATH") {
        Ok(path) if !path.is_empty() => format!("the loader's path (LD_LIBRARY_PATH={path})"),
        _ => "the loader's path (LD_LIBRARY_PATH is not set)".to_owned(),
    }
}

/// Folders that may hold libraries.
#[derive(Debug, PartialEq)]
struct Place {
    /// A pattern, or nothing where a variable is not set.
    folders: Option<String>,
    /// The variable that names it.
    variable: Option<&'static str>,
}

impl Place {
    fn find(&self, file: &str) -> Vec<PathBuf> {
        let pattern = self.folders.iter().map(|folders| format!("{folders}/{file}"));
        let paths = pattern.filter_map(|pattern| glob::glob(&pattern).ok()).flatten();
        paths.filter_map(Result::ok).filter(|path| path.is_file()).collect()
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.folders, self.variable) {
            (Some(folders), Some(variable)) => write!(f, "{folders} ({variable})"),
            (Some(folders), None) => f.write_str(folders),
            (None, variable) => write!(f, "{} (not set)", variable.unwrap_or_default()),
        }
    }
}

/// Where toolkits and Python environments keep libraries, in the order they are looked at.
fn places(variable: &dyn Fn(&str) -> Option<String>) -> Vec<Place> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let named = |name: &'static str, within: &str| {
        let folders = variable(name).map(|root| format!("{}/{within}", glob::Pattern::escape(&root)));
        Place { folders, variable: Some(name) }
    };
    let anonymous = |folders: String| Place { folders: Some(folders), variable: None };
    // Debian has a folder for each Python and one for all, and calls them dist-packages.
    let packages = "lib*/python3*/*-packages/nvidia/*/lib";
    let mut places = vec![
        named("CUDA_HOME", "lib64"),
        named("CUDA_PATH", "lib64"),
        anonymous("/usr/local/cuda*/lib64".to_owned()),
        named("VIRTUAL_ENV", packages),
        named("CONDA_PREFIX", packages),
    ];
    let prefixes = variable("PATH").map(|path| python_prefixes(&path)).unwrap_or_default();
    places.extend(prefixes.iter().map(|prefix| anonymous(format!("{prefix}/{packages}"))));
    if let Some(home) = variable("HOME") {
        places.push(anonymous(format!("{}/.local/{packages}", glob::Pattern::escape(&home))));
    }
    places
}

/// Where the Python that `python3` starts is installed, as patterns: the folder over that of its program, as a virtual
/// environment has it, and that of the program itself behind links.
fn python_prefixes(path: &str) -> Vec<String> {
    let mut programs = env::split_paths(path).map(|folder| folder.join("python3"));
    let Some(program) = programs.find(|program| program.is_file()) else { return Vec::new() };
    let mut prefixes: Vec<String> = Vec::new();
    for program in [Some(program.clone()), program.canonicalize().ok()].into_iter().flatten() {
        let Some((folder, prefix)) = program.parent().and_then(|folder| Some((folder, folder.parent()?)))
        else {
            continue;
        };
        let escaped = glob::Pattern::escape(&prefix.to_string_lossy());
        let more = if folder.ends_with("shims") {
            // pyenv's program, which chooses among the Pythons that it installed.
            vec![format!("{escaped}/versions/*")]
        } else if prefix == Path::new("/usr") {
            // pip installs past the system's packages.
            vec![escaped, "/usr/local".to_owned()]
        } else {
            vec![escaped]
        };
        for prefix in more {
            if !prefixes.contains(&prefix) {
                prefixes.push(prefix);
            }
        }
    }
    prefixes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn touch(file: &Path) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
    }

    #[test]
    fn libraries_of_python_environments_are_found() {
        let root = tempfile::tempdir().unwrap();
        let (venv, real) = (root.path().join("a [b] venv"), root.path().join("real"));
        let packages = "lib/python3.12/site-packages/nvidia";
        let wanted = venv.join(packages).join("cu13/lib/libnvrtc.so.13");
        let second = real.join(packages).join("cuda_nvrtc/lib/libnvrtc.so.13");
        let packaged = real.join("lib/python3/dist-packages/nvidia/cu13/lib/libnvrtc.so.13");
        for file in [&wanted, &second, &packaged, &real.join("bin/python3")] {
            touch(file);
        }
        fs::create_dir_all(venv.join("bin")).unwrap();
        symlink(real.join("bin/python3"), venv.join("bin/python3")).unwrap();
        let path = venv.join("bin").display().to_string();
        let variable = |name: &str| (name == "PATH").then(|| path.clone());
        let found: Vec<PathBuf> =
            places(&variable).iter().flat_map(|place| place.find("libnvrtc.so.13")).collect();
        let ours: Vec<&PathBuf> = found.iter().filter(|path| path.starts_with(root.path())).collect();
        let behind_links = |file: &Path| file.canonicalize().unwrap();
        assert_eq!(ours, [&wanted, &behind_links(&packaged), &behind_links(&second)]);
    }

    #[test]
    fn builtins_lie_beside_their_compiler() {
        let folder = tempfile::tempdir().unwrap();
        let (library, wanted) =
            (folder.path().join("libnvrtc.so.13"), folder.path().join("libnvrtc-builtins.so.13.0"));
        // Of another version, and of another build of the same.
        for name in ["libnvrtc.so.13", "libnvrtc-builtins.so.12.9", "libnvrtc-builtins.alt.so.13.0"] {
            touch(&folder.path().join(name));
        }
        let file = builtins(Version { major: 13, minor: 0 });
        assert_eq!(beside(&library, &file), Err(format!("there is none in {}", folder.path().display())));
        touch(&wanted);
        assert_eq!(beside(&library, &file), Ok(wanted));
    }

    #[test]
    fn variables_name_places_and_say_when_they_are_not_set() {
        let variable = |name: &str| (name == "CUDA_HOME").then(|| "/opt/cuda".to_owned());
        let said: Vec<String> = places(&variable).iter().map(Place::to_string).collect();
        assert_eq!(
            said,
            [
                "/opt/cuda/lib64 (CUDA_HOME)",
                "CUDA_PATH (not set)",
                "/usr/local/cuda*/lib64",
                "VIRTUAL_ENV (not set)",
                "CONDA_PREFIX (not set)"
            ]
        );
    }

    #[test]
    fn an_old_driver_is_given_no_newer_library() {
        assert_eq!(Library::Nvrtc.files(12), ["libnvrtc.so.12"]);
        assert_eq!(Library::CublasLt.files(13), ["libcublasLt.so.13", "libcublasLt.so.12"]);
        assert_eq!(Library::Driver.files(0), ["libcuda.so.1"]);
    }
}
