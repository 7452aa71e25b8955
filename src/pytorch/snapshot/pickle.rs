//! Python pickles that hold data alone: dictionaries, lists, tuples, texts and numbers. Nothing is executed: an opcode that
//! would import or call something is an error. Shared values are stored once, so that a small file stays small.

use std::collections::HashMap;

/// The index of a value.
pub(super) type ValueRef = u32;

/// The one value that stands for all that nothing here reads.
const OTHER: ValueRef = 0;

/// The most keys of a dictionary that is read.
const MOST_KEYS: usize = 64;

#[derive(Debug)]
enum Value {
    /// None, or a number or text that nothing here reads.
    Other,
    Integer(i64),
    Text(String),
    List(Vec<ValueRef>),
    Dictionary(Vec<(ValueRef, ValueRef)>),
}

/// The values of a pickle.
#[derive(Debug)]
pub(super) struct Pickle {
    values: Vec<Value>,
    root: ValueRef,
}

impl Pickle {
    /// # Errors
    /// The file is truncated, is no pickle, or holds more than data.
    pub(super) fn read(bytes: &[u8]) -> Result<Pickle, String> {
        let mut reader = Reader {
            bytes,
            at: 0,
            values: vec![Value::Other],
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        };
        let root = reader.run()?;
        Ok(Pickle { values: reader.values, root })
    }

    pub(super) fn root(&self) -> ValueRef {
        self.root
    }

    /// The value of a key of a dictionary of a snapshot, which has few keys. None of larger ones: many references to one
    /// could take hours.
    pub(super) fn get(&self, of: ValueRef, key: &str) -> Option<ValueRef> {
        let Value::Dictionary(entries) = &self.values[of as usize] else { return None };
        if entries.len() > MOST_KEYS {
            return None;
        }
        entries.iter().rev().find(|(name, _)| self.text(*name) == Some(key)).map(|(_, value)| *value)
    }

    pub(super) fn text(&self, of: ValueRef) -> Option<&str> {
        match &self.values[of as usize] {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn integer(&self, of: ValueRef) -> Option<i64> {
        match self.values[of as usize] {
            Value::Integer(number) => Some(number),
            _ => None,
        }
    }

    /// The elements of a list or tuple.
    pub(super) fn list(&self, of: ValueRef) -> Option<&[ValueRef]> {
        match &self.values[of as usize] {
            Value::List(elements) => Some(elements),
            _ => None,
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<ValueRef>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: HashMap<u32, ValueRef>,
}

impl<'a> Reader<'a> {
    /// Runs the opcodes; returns the value that remains.
    fn run(&mut self) -> Result<ValueRef, String> {
        if self.bytes.first() != Some(&0x80) {
            return Err("it is not a pickle of protocol 2 or later".to_owned());
        }
        loop {
            let place = self.at;
            match self.byte()? {
                b'.' => return self.pop(),
                0x80 => match self.byte()? {
                    2..=5 => {}
                    protocol => return Err(format!("its protocol is {protocol}; 2 to 5 are read")),
                },
                0x95 => drop(self.take(8)?),
                b'(' => self.marks.push(self.stack.len()),
                b'0' if self.marks.last() == Some(&self.stack.len()) => drop(self.marks.pop()),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.above_mark()?),
                b'N' | 0x88 | 0x89 => self.stack.push(OTHER),
                b'J' => {
                    let number = i32::from_le_bytes(self.array()?);
                    self.push(Value::Integer(number.into()))?;
                }
                b'K' => {
                    let number = self.byte()?;
                    self.push(Value::Integer(number.into()))?;
                }
                b'M' => {
                    let number = u16::from_le_bytes(self.array()?);
                    self.push(Value::Integer(number.into()))?;
                }
                0x8a => {
                    let length = self.byte()?.into();
                    self.long(length)?;
                }
                0x8b => {
                    let length = self.length(4)?;
                    self.long(length)?;
                }
                b'G' => {
                    self.take(8)?;
                    self.stack.push(OTHER);
                }
                0x8c => self.string(1)?,
                b'X' => self.string(4)?,
                0x8d => self.string(8)?,
                b'C' => self.skip(1)?,
                b'B' => self.skip(4)?,
                0x8e => self.skip(8)?,
                b']' | b')' => self.push(Value::List(Vec::new()))?,
                b'}' => self.push(Value::Dictionary(Vec::new()))?,
                count @ 0x85..=0x87 => {
                    let first =
                        self.stack.len().checked_sub(usize::from(count - 0x84)).ok_or("an empty stack")?;
                    let elements = self.stack.split_off(first);
                    self.push(Value::List(elements))?;
                }
                b't' | b'l' => {
                    let elements = self.above_mark()?;
                    self.push(Value::List(elements))?;
                }
                b'd' => {
                    let entries = pairs(&self.above_mark()?)?;
                    self.push(Value::Dictionary(entries))?;
                }
                b'a' => {
                    let element = self.pop()?;
                    self.append(&[element])?;
                }
                b'e' => {
                    let elements = self.above_mark()?;
                    self.append(&elements)?;
                }
                b's' => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.set(&[key, value])?;
                }
                b'u' => {
                    let entries = self.above_mark()?;
                    self.set(&entries)?;
                }
                b'q' => {
                    let index = self.byte()?.into();
                    self.remember(index)?;
                }
                b'r' => {
                    let index = u32::from_le_bytes(self.array()?);
                    self.remember(index)?;
                }
                0x94 => self.remember(self.memo.len() as u32)?,
                b'h' => {
                    let index = self.byte()?.into();
                    self.recall(index)?;
                }
                b'j' => {
                    let index = u32::from_le_bytes(self.array()?);
                    self.recall(index)?;
                }
                opcode => {
                    return Err(format!(
                        "byte {place}: opcode 0x{opcode:02x} is not of plain data; only data is read"
                    ));
                }
            }
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or("it is truncated")?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.take(1)?[0])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.take(N)?;
        Ok(std::array::from_fn(|index| bytes[index]))
    }

    /// A little-endian length of this many bytes.
    fn length(&mut self, bytes: usize) -> Result<usize, String> {
        let length = self.take(bytes)?.iter().rev().fold(0u64, |length, byte| length << 8 | u64::from(*byte));
        usize::try_from(length).map_err(|_| "it is truncated".to_owned())
    }

    fn push(&mut self, value: Value) -> Result<(), String> {
        let index = u32::try_from(self.values.len()).map_err(|_| "it has more than 2^32 values")?;
        self.values.push(value);
        self.stack.push(index);
        Ok(())
    }

    fn pop(&mut self) -> Result<ValueRef, String> {
        self.stack.pop().ok_or_else(|| "an opcode lacks its operand".to_owned())
    }

    fn above_mark(&mut self) -> Result<Vec<ValueRef>, String> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len());
        Ok(self.stack.split_off(mark.ok_or("an opcode lacks its mark")?))
    }

    /// An integer of this many bytes. Nothing here reads those beyond 64 bits.
    fn long(&mut self, length: usize) -> Result<(), String> {
        let bytes = self.take(length)?;
        let sign = bytes.last().map_or(0, |last| if last & 0x80 == 0 { 0 } else { 0xff });
        let mut wide = [sign; 8];
        let fits = bytes.len() <= 8;
        wide[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
        if fits {
            return self.push(Value::Integer(i64::from_le_bytes(wide)));
        }
        self.stack.push(OTHER);
        Ok(())
    }

    /// A text with a length of this many bytes.
    fn string(&mut self, bytes: usize) -> Result<(), String> {
        let length = self.length(bytes)?;
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.push(Value::Text(text))
    }

    /// Bytes, which nothing here reads.
    fn skip(&mut self, bytes: usize) -> Result<(), String> {
        let length = self.length(bytes)?;
        self.take(length)?;
        self.stack.push(OTHER);
        Ok(())
    }

    fn top(&self) -> Result<ValueRef, String> {
        self.stack.last().copied().ok_or_else(|| "an opcode lacks its operand".to_owned())
    }

    fn append(&mut self, elements: &[ValueRef]) -> Result<(), String> {
        let top = self.top()?;
        match &mut self.values[top as usize] {
            Value::List(list) => list.extend(elements),
            _ => return Err("APPENDS needs a list".to_owned()),
        }
        Ok(())
    }

    fn set(&mut self, entries: &[ValueRef]) -> Result<(), String> {
        let (top, entries) = (self.top()?, pairs(entries)?);
        match &mut self.values[top as usize] {
            Value::Dictionary(dictionary) => dictionary.extend(entries),
            _ => return Err("SETITEMS needs a dictionary".to_owned()),
        }
        Ok(())
    }

    fn remember(&mut self, index: u32) -> Result<(), String> {
        let top = self.top()?;
        self.memo.insert(index, top);
        Ok(())
    }

    fn recall(&mut self, index: u32) -> Result<(), String> {
        let value = self.memo.get(&index).copied().ok_or("a reference to no value")?;
        self.stack.push(value);
        Ok(())
    }
}

fn pairs(values: &[ValueRef]) -> Result<Vec<(ValueRef, ValueRef)>, String> {
    let (pairs, rest) = values.as_chunks::<2>();
    if rest.is_empty() {
        return Ok(pairs.iter().map(|&[key, value]| (key, value)).collect());
    }
    Err("a key without a value".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `{"a": [1, -2, 2**40], "b": ("x", None)}`, by protocol 2 and 4.
    const PROTOCOL_2: &[u8] = b"\x80\x02}q\0(X\x01\0\0\0aq\x01]q\x02(K\x01J\xfe\xff\xff\xff\x8a\x06\0\0\0\0\0\x01eX\x01\0\0\0bq\x03X\x01\0\0\0xq\x04N\x86q\x05u.";
    const PROTOCOL_4: &[u8] = b"\x80\x04\x95\x22\0\0\0\0\0\0\0}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\xff\x8a\x06\0\0\0\0\0\x01e\x8c\x01b\x94\x8c\x01x\x94N\x86\x94u.";

    #[test]
    fn data_of_both_protocols_is_read() {
        for bytes in [PROTOCOL_2, PROTOCOL_4] {
            let pickle = Pickle::read(bytes).unwrap();
            let [a, b] = ["a", "b"].map(|key| pickle.list(pickle.get(pickle.root(), key).unwrap()).unwrap());
            let numbers: Vec<i64> = a.iter().filter_map(|number| pickle.integer(*number)).collect();
            assert_eq!(numbers, [1, -2, 1 << 40]);
            assert_eq!(b.iter().map(|value| pickle.text(*value)).collect::<Vec<_>>(), [Some("x"), None]);
        }
    }

    /// `os.system`, and every truncation of a valid pickle.
    #[test]
    fn code_and_truncated_files_are_refused() {
        let code = b"\x80\x02cos\nsystem\nq\0X\x02\0\0\0idq\x01\x85q\x02Rq\x03.";
        assert!(Pickle::read(code).unwrap_err().contains("opcode 0x63 is not of plain data"));
        for end in 0..PROTOCOL_4.len() {
            assert!(Pickle::read(&PROTOCOL_4[..end]).is_err());
        }
    }

    /// References are stored once: nested ones would otherwise grow exponentially.
    #[test]
    fn shared_values_are_not_copied() {
        // x = []; 64 times x = [x, x]
        let mut bytes = b"\x80\x02]q\0".to_vec();
        for index in 0..64u8 {
            bytes.extend([b'0', b'(', b'h', index, b'h', index, b'l', b'q', index + 1]);
        }
        bytes.push(b'.');
        let pickle = Pickle::read(&bytes).unwrap();
        assert_eq!(pickle.values.len(), 66);
    }
}
