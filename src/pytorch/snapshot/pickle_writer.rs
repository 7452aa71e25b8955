//! Writes Python pickles (protocol 2) of plain data.

use std::collections::HashMap;

/// The most elements that one opcode appends, as in Python. memory_viz passes them as arguments of a function.
const BATCH: usize = 1000;

/// The place of a value in the memo, which later references repeat.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reference(u32);

pub(super) struct PickleWriter {
    bytes: Vec<u8>,
    texts: HashMap<String, Reference>,
    references: u32,
}

impl PickleWriter {
    pub(super) fn new() -> PickleWriter {
        PickleWriter { bytes: vec![0x80, 2], texts: HashMap::new(), references: 0 }
    }

    /// The file, once one value was written.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }

    pub(super) fn integer(&mut self, number: i64) {
        if let Ok(byte) = u8::try_from(number) {
            self.bytes.extend([b'K', byte]);
        } else if let Ok(number) = i32::try_from(number) {
            self.bytes.push(b'J');
            self.bytes.extend(number.to_le_bytes());
        } else {
            self.bytes.extend([0x8a, 8]);
            self.bytes.extend(number.to_le_bytes());
        }
    }

    pub(super) fn boolean(&mut self, value: bool) {
        self.bytes.push(if value { 0x88 } else { 0x89 });
    }

    /// Each text is written once.
    pub(super) fn text(&mut self, text: &str) {
        if let Some(&reference) = self.texts.get(text) {
            return self.repeat(reference);
        }
        self.bytes.push(b'X');
        self.bytes.extend((text.len() as u32).to_le_bytes());
        self.bytes.extend(text.as_bytes());
        let reference = self.remember();
        self.texts.insert(text.to_owned(), reference);
    }

    pub(super) fn list<T>(
        &mut self,
        elements: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut PickleWriter, T),
    ) {
        self.bytes.extend(b"](");
        for (number, element) in elements.into_iter().enumerate() {
            if number > 0 && number.is_multiple_of(BATCH) {
                self.bytes.extend(b"e(");
            }
            write(self, element);
        }
        self.bytes.push(b'e');
    }

    pub(super) fn pair(&mut self, pair: [i64; 2]) {
        pair.into_iter().for_each(|number| self.integer(number));
        self.bytes.push(0x86);
    }

    /// A dictionary of the entries that `write` writes.
    pub(super) fn dictionary(&mut self, write: impl FnOnce(&mut PickleWriter)) {
        self.bytes.extend(b"}(");
        write(self);
        self.bytes.push(b'u');
    }

    pub(super) fn text_entry(&mut self, key: &str, value: &str) {
        self.text(key);
        self.text(value);
    }

    pub(super) fn integer_entry(&mut self, key: &str, value: i64) {
        self.text(key);
        self.integer(value);
    }

    pub(super) fn boolean_entry(&mut self, key: &str, value: bool) {
        self.text(key);
        self.boolean(value);
    }

    /// Remembers the value that was written last.
    pub(super) fn remember(&mut self) -> Reference {
        let reference = Reference(self.references);
        self.references += 1;
        self.bytes.push(b'r');
        self.bytes.extend(reference.0.to_le_bytes());
        reference
    }

    /// Writes a remembered value again.
    pub(super) fn repeat(&mut self, Reference(number): Reference) {
        match u8::try_from(number) {
            Ok(number) => self.bytes.extend([b'h', number]),
            Err(_) => {
                self.bytes.push(b'j');
                self.bytes.extend(number.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pickle::Pickle;
    use super::*;

    /// More elements than one opcode appends, integers of all widths, and a text that is written once.
    #[test]
    fn written_values_are_read() {
        let numbers: Vec<i64> = (0..2500).chain([-1, 1 << 20, 1 << 40, i64::MIN]).collect();
        let mut writer = PickleWriter::new();
        writer.dictionary(|out| {
            out.text("numbers");
            out.list(&numbers, |out, number| out.integer(*number));
            out.text_entry("name", "numbers");
        });
        let bytes = writer.finish();
        assert_eq!(bytes.windows(7).filter(|window| *window == b"numbers").count(), 1);
        let pickle = Pickle::read(&bytes).unwrap();
        let field = |key| pickle.get(pickle.root(), key).unwrap();
        let read = pickle.list(field("numbers")).unwrap().iter().map(|value| pickle.integer(*value).unwrap());
        assert_eq!(read.collect::<Vec<_>>(), numbers);
        assert_eq!(pickle.text(field("name")), Some("numbers"));
    }
}
