//! The index of a model whose tensors are in several files: `model.safetensors.index.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use serde::Deserialize;

use super::WeightsError;
use super::file::TensorFile;
use base::brief;
use base::regular;
use base::units::Bytes;

/// Names of a million tensors are less.
const LONGEST: Bytes = Bytes(64 << 20);

#[derive(Deserialize)]
struct Index {
    /// The name of a tensor, and the file beside the index that it is in.
    weight_map: BTreeMap<String, String>,
}

/// The files, and which of them each tensor is in.
pub(super) fn open(path: &Path) -> Result<(Vec<TensorFile>, BTreeMap<String, usize>), WeightsError> {
    let broken = |problem: String| WeightsError::NotIndex { path: path.to_owned(), problem };
    let text = regular::read(path, LONGEST)
        .map_err(|error| WeightsError::Unreadable { path: path.to_owned(), error })?;
    let index: Index = serde_json::from_slice(&text).map_err(|error| broken(error.to_string()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let (mut files, mut numbers) = (Vec::new(), BTreeMap::new());
    let mut places = BTreeMap::new();
    for (tensor, name) in index.weight_map {
        let number = match numbers.get(&name) {
            Some(number) => *number,
            None => {
                let is_beside = matches!(
                    Path::new(&name).components().collect::<Vec<_>>().as_slice(),
                    [Component::Normal(_)]
                );
                if !is_beside {
                    return Err(broken(format!("`{}` is no name of a file beside it", brief::line(&name))));
                }
                files.push(TensorFile::open(&folder.join(&name))?);
                numbers.insert(name.clone(), files.len() - 1);
                files.len() - 1
            }
        };
        places.insert(tensor, number);
    }
    for (number, file) in files.iter().enumerate() {
        let names: BTreeSet<String> = file.names().collect();
        let lacks = places.iter().find(|(tensor, place)| **place == number && !names.contains(*tensor));
        if let Some((tensor, _)) = lacks {
            let file = file.path().display();
            return Err(broken(format!("it has `{}` in {file}, which has not", brief::line(tensor))));
        }
    }
    Ok((files, places))
}
