//! Checkpoints in a folder, and files that hold a part of one.

use std::path::{Path, PathBuf};

/// A model's own safetensors file, and the index of several, as the library writes them.
const NAMES: [&str; 2] = ["model.safetensors", "model.safetensors.index.json"];

/// Files of PyTorch that hold a whole model or list its parts, as the library wrote them.
const OF_PYTORCH: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// What the names of files begin with that hold other parts of a training.
const OTHERS: [&str; 5] = ["adapter_", "optimizer", "rng_state", "scheduler", "training_args"];

/// Endings of files of PyTorch.
const ENDINGS: [&str; 4] = ["bin", "pt", "pth", "ckpt"];

/// Maximum number of entries of a folder that are looked at.
const MOST: usize = 10_000;

/// The weights in a model's folder: safetensors first, else a file that must be converted. `None` if there are none.
pub fn weights_in(folder: &Path) -> Option<PathBuf> {
    let known = NAMES.iter().chain(&OF_PYTORCH).map(|name| folder.join(name));
    if let Some(known) = known.into_iter().find(|file| file.is_file()) {
        return Some(known);
    }
    let entries = std::fs::read_dir(folder).ok()?.take(MOST).filter_map(Result::ok);
    let is_of_model = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        file.is_file() && !OTHERS.iter().any(|other| name.starts_with(other))
    };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_of_model).collect();
    files.sort();
    let ends = |file: &&PathBuf, endings: &[&str]| {
        file.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| endings.contains(&ending))
    };
    let tensors = files.iter().find(|file| ends(file, &["safetensors"]));
    tensors.or_else(|| files.iter().find(|file| ends(file, &ENDINGS))).cloned()
}

/// The index of a checkpoint of several files, if this is one of them: `model-00001-of-00003.safetensors`. With their number.
pub(super) fn index_of_shard(path: &Path) -> Option<(PathBuf, usize)> {
    let stem = path.file_stem()?.to_str()?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    let number: usize = number.parse().ok()?;
    let count: usize = count.parse().ok().filter(|count| *count > 1 && (1..=*count).contains(&number))?;
    Some((path.with_file_name(format!("{name}.safetensors.index.json")), count))
}

/// The format of a file that is not a safetensors file but another checkpoint, by its first bytes.
pub(super) fn other_format(path: &Path, begin: &[u8]) -> Option<&'static str> {
    let zipped = begin.starts_with(b"PK\x03\x04");
    // A safetensors file begins with the length of its header, at most 100 MB, whose bytes may look like pickle's protocol.
    let length = begin.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let has_protocol =
        begin.starts_with(&[0x80]) && begin.get(1).is_some_and(|protocol| (2..=5).contains(protocol));
    let pickled = has_protocol && length > 100_000_000;
    match begin {
        _ if zipped && path.extension().is_some_and(|ending| ending == "npz") => Some("a NumPy archive"),
        _ if zipped => Some("a checkpoint of PyTorch (zip)"),
        _ if pickled => Some("a checkpoint of PyTorch (pickle)"),
        _ if begin.starts_with(b"GGUF") => Some("a GGUF file"),
        _ if begin.starts_with(b"\x89HDF") => Some("an HDF5 file"),
        _ => None,
    }
}

/// The line of Python that writes a checkpoint of PyTorch as safetensors: of a model's folder by the library, which joins
/// several files; else by PyTorch.
pub(super) fn conversion(path: &Path) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with("pytorch_model") && folder.join("config.json").is_file() {
        return format!(
            "convert it with Python: from transformers import AutoModelForCausalLM; f = {:?}; \
             AutoModelForCausalLM.from_pretrained(f).save_pretrained(f)",
            folder.display().to_string()
        );
    }
    format!(
        "convert it with Python: import torch; from safetensors.torch import save_file; f = {:?}; save_file({{name: \
         tensor.clone() for name, tensor in torch.load(f, map_location=\"cpu\").items()}}, f + \".safetensors\")",
        path.display().to_string()
    )
}

/// Whether an index lists files of PyTorch.
pub(super) fn is_pytorch_index(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".bin.index.json"))
}

/// Prefixes of names that wrappers of a model add: data parallelism, `torch.compile`, PEFT.
const WRAPPERS: [&str; 3] = ["module.", "_orig_mod.", "base_model.model."];

/// The length of the prefixes that wrappers added to all of these names.
pub(super) fn wrapper_prefix<'a>(names: impl Iterator<Item = &'a str> + Clone) -> usize {
    let mut length = 0;
    let has = |length: usize, prefix: &str| {
        let mut rests = names.clone().map(|name| &name[length..]).peekable();
        rests.peek().is_some() && rests.all(|rest| rest.starts_with(prefix))
    };
    while let Some(prefix) = WRAPPERS.iter().find(|prefix| has(length, prefix)) {
        length += prefix.len();
    }
    length
}
