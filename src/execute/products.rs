//! How a run's products are computed: chosen before its memory is asked for, and kept with it.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use super::error::{RunError, cannot_write};
use compile::Program;
use device::{Choice, Device, Pool, Source, Work};

/// The file in a run's folder with a line for each shape of product. Where it is there beforehand, the run computes
/// products as it says: training again then ends in the same bits, whatever is in the cache.
pub const PRODUCTS_FILE: &str = "products.csv";

/// How many shapes of products there were, by where their choices came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProductSources {
    pub timed: u64,
    pub cached: u64,
    pub stored: u64,
    pub untimed: u64,
}

/// Has the device choose for a program, and writes down and logs what it chose. `None` if it has nothing to choose.
///
/// # Errors
/// A file that cannot be read or written, stored choices that cannot be followed, or a device that fails.
pub(super) fn choose(
    folder: &Path,
    program: &Program,
    device: &mut dyn Device,
) -> Result<Option<ProductSources>, RunError> {
    let file = folder.join(PRODUCTS_FILE);
    let work: Vec<Work> = program.work().into_iter().filter(|work| work.home == Pool::Device).collect();
    device.choose(&work, &read(&file)?)?;
    for note in device.notes() {
        // Into the run's log, where its parent sends what it says. Without the line the run is as good.
        let _ = writeln!(io::stderr(), "{note}");
    }
    let choices = device.choices();
    if choices.is_empty() {
        return Ok(None);
    }
    write(&file, &choices).map_err(|error| cannot_write(&file, error))?;
    let mut products = ProductSources::default();
    for choice in &choices {
        let _ = writeln!(io::stderr(), "{choice}");
        *match choice.source {
            Source::Timed => &mut products.timed,
            Source::Cache => &mut products.cached,
            Source::LoadParameter => &mut products.stored,
            Source::Untimed => &mut products.untimed,
        } += 1;
    }
    Ok(Some(products))
}

/// No choices if there is no such file.
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
    fn mutated_choices_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(PRODUCTS_FILE);
        write(&file, &[choice("1x2x3 f32, default"), choice("1x2x3 f32, bias")]).unwrap();
        let seed = std::fs::read(&file).unwrap();
        read_mutated("choices of products", &[seed], &[PRODUCTS_FILE], |text| {
            std::fs::write(&file, text).unwrap();
            // The run that it is in fails with it: whoever shows that makes it harmless.
            let told = |error: RunError| brief::lines(&error.to_string()).escape_default().to_string();
            read(&file).map(|_| String::new()).map_err(told)
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
        // As it was written before operands could begin anywhere.
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().take(3).map(|line| line.rsplit_once(',').unwrap().0).collect();
        std::fs::write(&file, lines.join("\n")).unwrap();
        assert_eq!(read(&file).unwrap(), choices[..2]);
        std::fs::write(&file, "product,choice\n1,2\n").unwrap();
        let error = read(&file).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{} is no table of products: ", file.display())), "{error}");
    }
}
