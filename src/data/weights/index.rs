//! The index of a sharded checkpoint: `model.safetensors.index.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use serde::Deserialize;

use super::file::TensorFile;
use super::{WeightsError, folder as folders};
use base::brief;
use base::regular;
use base::units::Bytes;

/// Maximum size of an index: about 300,000 tensors.
const LONGEST: Bytes = Bytes(32 << 20);

/// Number of files that stay open. The usual limit is 1,024 per process.
const OPEN: usize = 256;

#[derive(Deserialize)]
struct Index {
    /// Name of each tensor to name of its file, in the folder of the index.
    weight_map: BTreeMap<String, String>,
}

/// Opens the files; returns them with the index of each tensor's file.
pub(super) fn open(path: &Path) -> Result<(Vec<TensorFile>, BTreeMap<String, usize>), WeightsError> {
    let broken = |problem: String| WeightsError::NotIndex { path: path.to_owned(), problem };
    let text = regular::read(path, LONGEST)
        .map_err(|error| WeightsError::Unreadable { path: path.to_owned(), error })?;
    if folders::is_pytorch_index(path) {
        let format = "the index of a checkpoint of PyTorch";
        return Err(WeightsError::OtherFormat { path: path.to_owned(), format });
    }
    let index: Index = serde_json::from_slice(&text).map_err(|error| broken(error.to_string()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let (mut files, mut numbers) = (Vec::new(), BTreeMap::new());
    let mut tensors = BTreeMap::new();
    for (tensor, name) in index.weight_map {
        let number = match numbers.get(&name) {
            Some(number) => *number,
            None => {
                let is_file_name = matches!(
                    Path::new(&name).components().collect::<Vec<_>>().as_slice(),
                    [Component::Normal(_)]
                );
                if !is_file_name {
                    return Err(broken(format!("`{}` is not a file name", brief::line(&name))));
                }
                files.push(TensorFile::open(&folder.join(&name), files.len() < OPEN)?);
                numbers.insert(name.clone(), files.len() - 1);
                files.len() - 1
            }
        };
        tensors.insert(tensor, number);
    }
    for (number, file) in files.iter().enumerate() {
        let names: BTreeSet<String> = file.names().collect();
        let missing = tensors.iter().find(|(tensor, file)| **file == number && !names.contains(*tensor));
        if let Some((tensor, _)) = missing {
            let file = file.path().display();
            return Err(broken(format!("it lists `{}` in {file}, which lacks it", brief::line(tensor))));
        }
    }
    Ok((files, tensors))
}
