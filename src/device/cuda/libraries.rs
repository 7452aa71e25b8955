//! Finds and loads the driver, NVRTC, cuBLASLt and NCCL.
//!
//! cudarc loads each library by its bare name, and panics if it is missing. So each is searched for here first: in the
//! loader's path, then in the folders of CUDA toolkits and Python environments. A library found there is loaded by its
//! path; the loader then resolves its bare name to the same library. NCCL is loaded by its bare name here: cudarc has other
//! names for it.
//!
//! The libraries also load others by bare name, and not all of them search their own folder, as `readelf -d` shows for
//! those on PyPI. NVRTC loads its builtins when it compiles: 13.5.37 has an RPATH of `$ORIGIN`, 12.9.86 a RUNPATH, and
//! 13.0.88 neither. cuBLASLt 13.1.0.3 and 12.9.1.4 depend only on libraries of a system with a driver, and load the
//! driver and `libnvrtc.so` of their own major version; they have a RUNPATH of `$ORIGIN`. NVRTC and its builtins are
//! loaded before them, so that name is already resolved.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::unavailable::{MissingLibrary, Version};

/// A library that the CUDA device needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    Driver,
    Nvrtc,
    CublasLt,
    /// Only for runs with several ranks.
    Nccl,
}

/// The supported CUDA major versions, newest first.
const MAJORS: [u32; 2] = [13, 12];

impl Library {
    fn description(self) -> &'static str {
        match self {
            Library::Driver => "the CUDA driver",
            Library::Nvrtc => "NVRTC (the kernel compiler)",
            Library::CublasLt => "cuBLASLt (the matmul library)",
            Library::Nccl => "NCCL (exchanges between ranks)",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Library::Driver => {
                "install NVIDIA's driver, or mount the host's driver into the container, or use `--device cpu`"
            }
            Library::Nvrtc => "`pip install nvidia-cuda-nvrtc` or the CUDA toolkit provides it",
            Library::CublasLt => "`pip install nvidia-cublas` or the CUDA toolkit provides it",
            Library::Nccl => {
                "`pip install nvidia-nccl-cu13` provides it (nvidia-nccl-cu12 for a driver of CUDA 12); parallel.data = 1 \
                 works without"
            }
        }
    }

    fn stem(self) -> &'static str {
        match self {
            Library::Driver => "libcuda.so",
            Library::Nvrtc => "libnvrtc.so",
            Library::CublasLt => "libcublasLt.so",
            Library::Nccl => "libnccl.so",
        }
    }

    /// File names in order of preference. A driver cannot use libraries of a newer major version than its own.
    fn files(self, newest: u32) -> Vec<String> {
        match self {
            Library::Driver => vec![format!("{}.1", self.stem())],
            Library::Nccl => vec![NCCL.to_owned()],
            _ => {
                let majors = MAJORS.into_iter().filter(|major| *major <= newest);
                majors.map(|major| format!("{}.{major}", self.stem())).collect()
            }
        }
    }

    /// Whether the loader finds the library.
    fn is_present(self) -> bool {
        // SAFETY: loading runs the library's initialisers: NVIDIA's, or those of the emulated stack.
        unsafe {
            match self {
                Library::Driver => cudarc::driver::sys::is_culib_present(),
                Library::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
                Library::CublasLt => cudarc::cublaslt::sys::is_culib_present(),
                Library::Nccl => loaded_nccl().is_some(),
            }
        }
    }

    /// The path of the loaded library, from the process's memory map.
    pub(super) fn path(self) -> Option<PathBuf> {
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        let paths = maps.lines().filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
        let mut matching = paths.filter(|path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(self.stem()))
        });
        matching.next().map(Path::to_path_buf)
    }
}

/// The name of the library for every version of CUDA.
const NCCL: &str = "libnccl.so.2";

/// NCCL, if the loader finds it.
fn loaded_nccl() -> Option<&'static libloading::Library> {
    static LOADED: OnceLock<libloading::Library> = OnceLock::new();
    if LOADED.get().is_none() {
        // SAFETY: as in `is_present`.
        let _ = LOADED.set(unsafe { libloading::Library::new(NCCL) }.ok()?);
    }
    LOADED.get()
}

/// NCCL, which is loaded.
pub(super) fn nccl() -> &'static libloading::Library {
    loaded_nccl().expect("NCCL is loaded before its first call")
}

/// Loads a library; if there are several, of a CUDA major version of at most `newest`.
pub(super) fn load(library: Library, newest: u32) -> Result<(), MissingLibrary> {
    if library.is_present() {
        return Ok(());
    }
    let mut files = library.files(newest);
    let search_folders =
        if library == Library::Driver { Vec::new() } else { search_folders(&|name| env::var(name).ok()) };
    let mut searched = vec![loader_path()];
    for folder in &search_folders {
        for found in files.iter().flat_map(|file| folder.find(file)) {
            // SAFETY: as in `is_present`.
            match unsafe { libloading::Library::new(&found) } {
                Ok(handle) => {
                    // Never unloaded: cudarc may load it by name at any time.
                    std::mem::forget(handle);
                    if library.is_present() {
                        return Ok(());
                    }
                }
                Err(error) => searched.push(format!("{} (cannot be loaded: {error})", found.display())),
            }
        }
        searched.push(folder.to_string());
    }
    let driver = library == Library::Driver;
    let has_majors = !driver && library != Library::Nccl;
    if let (true, Some(last)) = (has_majors && newest < MAJORS[0], files.last_mut()) {
        last.push_str(" (the driver cannot use a newer one)");
    }
    Err(MissingLibrary {
        what: library.description(),
        files,
        places: searched,
        advice: library.advice(),
        driver,
    })
}

/// The file name of NVRTC's builtins.
pub(super) fn builtins(nvrtc: Version) -> String {
    format!("libnvrtc-builtins.so.{nvrtc}")
}

/// Loads NVRTC's builtins from NVRTC's folder, so that NVRTC need not search for them. NVRTC is loaded.
///
/// # Errors
/// The reason, as part of a sentence. NVRTC may still find them elsewhere in the loader's path.
pub(super) fn load_builtins(nvrtc: Version) -> Result<(), String> {
    let library = Library::Nvrtc.path().ok_or("the path of NVRTC is unknown")?;
    let file = in_same_folder(&library, &builtins(nvrtc))?;
    // SAFETY: as in `is_present`.
    let handle = unsafe { libloading::Library::new(&file) };
    // Never unloaded: NVRTC may load it by name at any time.
    handle.map(std::mem::forget).map_err(|error| format!("{} cannot be loaded: {error}", file.display()))
}

fn in_same_folder(library: &Path, file: &str) -> Result<PathBuf, String> {
    let folder = library.parent().unwrap_or(Path::new("/"));
    let path = folder.join(file);
    if path.is_file() { Ok(path) } else { Err(format!("{} does not contain it", folder.display())) }
}

fn loader_path() -> String {
    match env::var("LD_LIBRARY_PATH") {
        Ok(path) if !path.is_empty() => format!("the loader's path (LD_LIBRARY_PATH={path})"),
        _ => "the loader's path (LD_LIBRARY_PATH is not set)".to_owned(),
    }
}

/// Folders to search for libraries.
#[derive(Debug, PartialEq)]
struct SearchFolder {
    /// A glob pattern; `None` if the variable is not set.
    folders: Option<String>,
    /// The environment variable that contains the root.
    variable: Option<&'static str>,
}

impl SearchFolder {
    fn find(&self, file: &str) -> Vec<PathBuf> {
        let pattern = self.folders.iter().map(|folders| format!("{folders}/{file}"));
        let paths = pattern.filter_map(|pattern| glob::glob(&pattern).ok()).flatten();
        paths.filter_map(Result::ok).filter(|path| path.is_file()).collect()
    }
}

impl std::fmt::Display for SearchFolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.folders, self.variable) {
            (Some(folders), Some(variable)) => write!(f, "{folders} ({variable})"),
            (Some(folders), None) => f.write_str(folders),
            (None, variable) => write!(f, "{} (not set)", variable.unwrap_or_default()),
        }
    }
}

/// The library folders of CUDA toolkits and Python environments, in search order.
fn search_folders(variable: &dyn Fn(&str) -> Option<String>) -> Vec<SearchFolder> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let from_variable = |name: &'static str, within: &str| {
        let folders = variable(name).map(|root| format!("{}/{within}", glob::Pattern::escape(&root)));
        SearchFolder { folders, variable: Some(name) }
    };
    let fixed = |folders: String| SearchFolder { folders: Some(folders), variable: None };
    // Debian calls these folders dist-packages, and has one per Python version and a common one.
    let packages = "lib*/python3*/*-packages/nvidia/*/lib";
    let mut search_folders = vec![
        from_variable("CUDA_HOME", "lib64"),
        from_variable("CUDA_PATH", "lib64"),
        fixed("/usr/local/cuda*/lib64".to_owned()),
        from_variable("VIRTUAL_ENV", packages),
        from_variable("CONDA_PREFIX", packages),
    ];
    let prefixes = variable("PATH").map(|path| python_prefixes(&path)).unwrap_or_default();
    search_folders.extend(prefixes.iter().map(|prefix| fixed(format!("{prefix}/{packages}"))));
    if let Some(home) = variable("HOME") {
        search_folders.push(fixed(format!("{}/.local/{packages}", glob::Pattern::escape(&home))));
    }
    search_folders
}

/// The prefixes of the Python that `python3` starts, as glob patterns: the parent of the program's folder, as in a
/// virtual environment, and the same after resolving links.
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
        let prefix_patterns = if folder.ends_with("shims") {
            // A pyenv shim, which selects one of the installed versions.
            vec![format!("{escaped}/versions/*")]
        } else if prefix == Path::new("/usr") {
            // pip installs outside the system's packages.
            vec![escaped, "/usr/local".to_owned()]
        } else {
            vec![escaped]
        };
        for prefix in prefix_patterns {
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
            search_folders(&variable).iter().flat_map(|place| place.find("libnvrtc.so.13")).collect();
        let ours: Vec<&PathBuf> = found.iter().filter(|path| path.starts_with(root.path())).collect();
        let behind_links = |file: &Path| file.canonicalize().unwrap();
        assert_eq!(ours, [&wanted, &behind_links(&packaged), &behind_links(&second)]);
    }

    #[test]
    fn builtins_are_found_next_to_nvrtc() {
        let folder = tempfile::tempdir().unwrap();
        let (library, wanted) =
            (folder.path().join("libnvrtc.so.13"), folder.path().join("libnvrtc-builtins.so.13.0"));
        // Builtins of another version, and of another build of the same version.
        for name in ["libnvrtc.so.13", "libnvrtc-builtins.so.12.9", "libnvrtc-builtins.alt.so.13.0"] {
            touch(&folder.path().join(name));
        }
        let file = builtins(Version { major: 13, minor: 0 });
        assert_eq!(
            in_same_folder(&library, &file),
            Err(format!("{} does not contain it", folder.path().display()))
        );
        touch(&wanted);
        assert_eq!(in_same_folder(&library, &file), Ok(wanted));
    }

    #[test]
    fn search_folders_show_their_variables() {
        let variable = |name: &str| (name == "CUDA_HOME").then(|| "/opt/cuda".to_owned());
        let shown: Vec<String> = search_folders(&variable).iter().map(SearchFolder::to_string).collect();
        assert_eq!(
            shown,
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
    fn libraries_newer_than_the_driver_are_excluded() {
        assert_eq!(Library::Nvrtc.files(12), ["libnvrtc.so.12"]);
        assert_eq!(Library::CublasLt.files(13), ["libcublasLt.so.13", "libcublasLt.so.12"]);
        assert_eq!(Library::Driver.files(0), ["libcuda.so.1"]);
        assert_eq!(Library::Nccl.files(12), ["libnccl.so.2"]);
    }
}
