use image::{GrayImage, Luma, Rgb, RgbImage};

use super::*;
use crate::samples::{INPUT, TARGETS};
use crate::{Batch, KeyedCount};
use ops::TensorType;

fn sample(shape: &[usize], classes: usize) -> Sample {
    let below = Some(KeyedCount { key: "model.sequential.layers", count: classes });
    let parts = vec![
        Part { role: PartRole::Input, name: INPUT, ty: TensorType::f32(shape), below: None },
        Part { role: PartRole::Target, name: TARGETS, ty: TensorType::i32(&[]), below },
    ];
    Sample { parts, length: None }
}

/// Folders `blue` and `red` with images of 4 by 2 pixels in these colours.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (class, colour) in [("red", [200, 0, 0]), ("blue", [0, 0, 200])] {
        let of_class = folder.path().join(class);
        fs::create_dir(&of_class).unwrap();
        for number in 0..16u8 {
            let pixel = Rgb(colour.map(|value: u8| value.saturating_sub(number)));
            RgbImage::from_pixel(4, 2, pixel).save(of_class.join(format!("{number}.png"))).unwrap();
        }
        fs::write(of_class.join("notes.txt"), "no image").unwrap();
    }
    folder
}

fn set(folder: &Path) -> ImageSet {
    ImageSet { folder: folder.to_owned(), evaluate: None, pixels: Pixels::default(), split: 0.5 }
}

/// The inputs, as bytes, and the classes of all samples for evaluation.
fn evaluated(set: &ImageSet, sample: &Sample, count: usize) -> (Vec<u8>, Vec<u8>) {
    let source = set.open(sample, &mut DigestCache::default()).unwrap();
    set.check(source.contents(), sample, true).unwrap();
    let mut batch = Batch::new(&sample.parts, count);
    source.fill_evaluation(count as u64, 0..count as u64, &mut batch).unwrap();
    let inputs = batch.part(INPUT).unwrap().bytes.as_chunks().0.iter();
    let inputs = inputs.map(|number| (f32::from_ne_bytes(*number) * 255.0).round() as u8).collect();
    (inputs, batch.part(TARGETS).unwrap().bytes.chunks(4).map(|class| class[0]).collect())
}

#[test]
fn images_have_the_classes_of_their_folders() {
    let folder = folder();
    let all = ImageSet { evaluate: Some(folder.path().to_owned()), split: 1.0, ..set(folder.path()) };
    let (inputs, classes) = evaluated(&all, &sample(&[3, 2, 4], 2), 32);
    assert_eq!(classes.iter().filter(|class| **class == 0).count(), 16, "blue comes first");
    for (input, class) in inputs.chunks(24).zip(classes) {
        let (own, others) = if class == 0 { (2, [0, 1]) } else { (0, [1, 2]) };
        assert!(input[8 * own..][..8].iter().all(|pixel| (185..=200).contains(pixel)), "{input:?}");
        assert!(others.iter().all(|channel| input[8 * channel..][..8] == [0; 8]));
    }
}

#[test]
fn splits_have_all_classes_wherever_the_folder_is() {
    let (first, second) = (folder(), folder());
    let digest = |set: &ImageSet| set.inspect(&mut DigestCache::default()).unwrap().digest().to_owned();
    assert_eq!(digest(&set(first.path())), digest(&set(second.path())));
    let (inputs, classes) = evaluated(&set(first.path()), &sample(&[3, 2, 4], 2), 16);
    assert_eq!((inputs.clone(), classes.clone()), evaluated(&set(second.path()), &sample(&[3, 2, 4], 2), 16));
    assert!(classes.contains(&0) && classes.contains(&1), "{classes:?}");
    fs::rename(second.path().join("red"), second.path().join("a red")).unwrap();
    assert_ne!(digest(&set(first.path())), digest(&set(second.path())), "other classes");
}

#[test]
fn images_are_scaled_and_cut_to_the_input() {
    let folder = tempfile::tempdir().unwrap();
    let of_class = folder.path().join("a");
    fs::create_dir(&of_class).unwrap();
    // Black, white, white, black.
    let image = GrayImage::from_fn(8, 2, |x, _| Luma([if (2..6).contains(&x) { 255 } else { 0 }]));
    image.save(of_class.join("0.PNG")).unwrap();
    let set = ImageSet { evaluate: Some(folder.path().to_owned()), split: 1.0, ..set(folder.path()) };
    let (input, _) = evaluated(&set, &sample(&[1, 2, 4], 1), 1);
    assert_eq!(input, [255; 8], "the centre");
    let (input, _) = evaluated(&set, &sample(&[3, 1, 4], 1), 1);
    assert_eq!(input[..4], input[4..8]);
    assert!(input[0] < 80 && input[1] > 175 && input[2] > 175 && input[3] < 80, "{input:?}");
}

#[test]
fn unfit_folders_are_errors() {
    let folder = folder();
    let error = |set: &ImageSet, sample: &Sample| {
        let inspected = set.inspect(&mut DigestCache::default());
        let found = inspected.map_err(|mut errors| errors.remove(0));
        let error = found.and_then(|contents| set.check(&*contents, sample, true)).unwrap_err();
        let (key, text) = (error.blame(), error.to_string());
        format!("{key:?}: {}", text.split_once(' ').unwrap().1)
    };
    let good = set(folder.path());
    for (shape, classes, expected) in [
        (&[24][..], 2, "Data(\"folder\"): has images, but model.sequential.input is [24]"),
        (&[2, 2, 4], 2, "Data(\"folder\"): has images, but model.sequential.input is [2, 2, 4]"),
        (&[3, 2, 4], 1, "Data(\"folder\"): has 2 folders, one for each class, but the model has 1 classes"),
    ] {
        assert_eq!(error(&good, &sample(shape, classes)), expected);
    }
    let pixels = Pixels { mean: vec![0.5], ..Pixels::default() };
    assert_eq!(
        error(&ImageSet { pixels, ..set(folder.path()) }, &sample(&[3, 2, 4], 2)),
        "Data(\"mean\"): is read with 3 channels, but mean has 1 number"
    );
    let other = tempfile::tempdir().unwrap();
    let apart = ImageSet { evaluate: Some(other.path().to_owned()), split: 1.0, ..set(folder.path()) };
    assert_eq!(
        error(&apart, &sample(&[3, 2, 4], 2)),
        "Data(\"evaluate\"): has no folders, one for each class"
    );
    fs::create_dir(other.path().join("green")).unwrap();
    assert_eq!(
        error(&apart, &sample(&[3, 2, 4], 2)),
        "Data(\"evaluate\"): has a folder `green`, which is no class of those for training"
    );
    fs::write(folder.path().join("red/0.png"), "no image").unwrap();
    assert_eq!(
        error(&good, &sample(&[3, 2, 4], 2)),
        "Data(\"folder\"): is neither a PNG nor a JPEG file, as its first bytes show"
    );
}

#[test]
fn damaged_or_changed_image_is_an_error_when_it_is_read() {
    let folder = folder();
    let sample = sample(&[3, 2, 4], 2);
    let file = folder.path().join("red/0.png");
    let whole = fs::read(&file).unwrap();
    let all = ImageSet { evaluate: Some(folder.path().to_owned()), split: 1.0, ..set(folder.path()) };
    let fill = |source: &dyn Source| {
        source.fill_evaluation(32, 0..32, &mut Batch::new(&sample.parts, 32)).unwrap_err().to_string()
    };
    let source = all.open(&sample, &mut DigestCache::default()).unwrap();
    fs::write(&file, &whole[..45]).unwrap();
    let changed = fill(&*source);
    assert!(changed.ends_with("0.png changed during the run"), "{changed}");
    let source = all.open(&sample, &mut DigestCache::default()).unwrap();
    let damaged = fill(&*source);
    assert!(damaged.contains("0.png cannot be decoded: "), "{damaged}");
}
