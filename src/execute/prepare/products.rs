//! Selects the algorithms of a run's matmuls before its memory is allocated, and stores them with the run.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::error::{RunError, cannot_write};
use compile::Program;
use device::{Choice, Device, Pool, Rank, Source, Work};

/// The file in a run's folder with a line for each matmul shape. If it exists beforehand, the run uses its algorithms:
/// a repeat is then bitwise equal, independent of the cache.
pub const PRODUCTS_FILE: &str = "products.csv";

/// The number of matmul shapes by the source of their algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MatmulAlgorithmSources {
    pub(crate) timed: u64,
    pub(crate) cached: u64,
    pub(crate) stored: u64,
    pub(crate) untimed: u64,
}

/// Lets the device choose algorithms for a program, and writes and logs the choices. Of several ranks, the first chooses,
/// and the others take its choices: they must end with equal parameters. `None` if the device has no choice.
///
/// # Errors
/// A file that cannot be read or written, stored choices that the device cannot use, or a device that fails.
pub(crate) fn choose(
    folder: &Path,
    program: &Program,
    device: &mut dyn Device,
    rank: Rank,
) -> Result<Option<MatmulAlgorithmSources>, RunError> {
    let is_first = rank.index == 0;
    // Ranks meet where they sum no numbers.
    if !is_first {
        device.sum_over_ranks(&mut [])?;
    }
    let chosen = choose_alone(folder, program, device, is_first)?;
    if is_first && rank.of > 1 {
        device.sum_over_ranks(&mut [])?;
    }
    Ok(chosen)
}

fn choose_alone(
    folder: &Path,
    program: &Program,
    device: &mut dyn Device,
    writes: bool,
) -> Result<Option<MatmulAlgorithmSources>, RunError> {
    let file = folder.join(PRODUCTS_FILE);
    let work: Vec<Work> = program.work().into_iter().filter(|work| work.home == Pool::Device).collect();
    device.choose(&work, &read(&file)?)?;
    for note in device.notes() {
        // Standard error is the run's log. The run does not depend on the line.
        let _ = writeln!(io::stderr(), "{note}");
    }
    let choices = device.choices();
    if choices.is_empty() {
        return Ok(None);
    }
    if writes {
        write(&file, &choices).map_err(|error| cannot_write(&file, error))?;
    }
    let mut products = MatmulAlgorithmSources::default();
    for choice in &choices {
        let _ = writeln!(io::stderr(), "{choice}");
        *match choice.source {
            Source::Timed => &mut products.timed,
            Source::Cache => &mut products.cached,
            Source::Stored => &mut products.stored,
            Source::Untimed => &mut products.untimed,
        } += 1;
    }
    Ok(Some(products))
}

/// Reads stored choices. Empty if there is no file.
fn read(file: &Path) -> Result<Vec<Choice>, RunError> {
    let opened = match File::open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(RunError::Read { file: file.display().to_string(), error }),
    };
    let choices = csv::Reader::from_reader(opened).into_deserialize().collect::<Result<_, _>>();
    choices.map_err(|error| RunError::Products { file: file.display().to_string(), error })
}

fn write(file: &Path, choices: &[Choice]) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(File::create(file)?);
    choices.iter().try_for_each(|choice| writer.serialize(choice))?;
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::brief;
    use testing::readers::read_mutated;

    fn choice(product: &str) -> Choice {
        Choice {
            product: product.to_owned(),
            choice: "algorithm 66, tile 20".to_owned(),
            source: Source::Timed,
            candidates_ms: "0.0312 refused apart 0.0411".to_owned(),
            setting: "a card, compute capability 9.0, cuBLASLt 13.0.0, driver 13.0".to_owned(),
            algorithm: "00ff".to_owned(),
            alignment: String::new(),
        }
    }

    #[test]
    fn mutated_files_are_read_or_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(PRODUCTS_FILE);
        write(&file, &[choice("1x2x3 f32, default"), choice("1x2x3 f32, bias")]).unwrap();
        let seed = std::fs::read(&file).unwrap();
        read_mutated("choices of products", &[seed], &[PRODUCTS_FILE], |text| {
            std::fs::write(&file, text).unwrap();
            // The message fails the run. Whatever prints it escapes it.
            let message = |error: RunError| brief::lines(&error.to_string()).escape_default().to_string();
            read(&file).map(|_| String::new()).map_err(message)
        });
    }

    #[test]
    fn choices_survive_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(PRODUCTS_FILE);
        assert_eq!(read(&file).unwrap(), [], "there is no file");
        let apart =
            Choice { choice: "apart".to_owned(), algorithm: String::new(), ..choice("1x2x3 f32, bias") };
        let at_rows = Choice { alignment: "left 4, output 64".to_owned(), ..choice("1x2x3 f32, default") };
        let choices = [choice("1x2x3 f32, default"), apart, at_rows];
        write(&file, &choices).unwrap();
        assert_eq!(read(&file).unwrap(), choices);
        // A file from before the `alignment` column.
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().take(3).map(|line| line.rsplit_once(',').unwrap().0).collect();
        std::fs::write(&file, lines.join("\n")).unwrap();
        assert_eq!(read(&file).unwrap(), choices[..2]);
        std::fs::write(&file, "product,choice\n1,2\n").unwrap();
        let error = read(&file).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("{} is not a table of matmul algorithms: ", file.display())),
            "{error}"
        );
    }
}
