//! Questions in a terminal.

use std::io::{BufRead, IsTerminal as _, Write};

use crate::failure::Failure;

/// Asks questions on standard error and reads answers from standard input.
pub(super) struct Prompt<R, W> {
    input: R,
    output: W,
}

/// Questions in this terminal; `None` if nobody can answer.
pub(super) fn terminal() -> Option<Prompt<impl BufRead, impl Write>> {
    let can_answer = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    can_answer.then(|| Prompt { input: std::io::stdin().lock(), output: std::io::stderr() })
}

impl<R: BufRead, W: Write> Prompt<R, W> {
    /// Asks until the answer is valid. An empty answer is the default.
    ///
    /// # Errors
    /// The input ends.
    pub(super) fn ask<T>(
        &mut self,
        question: &str,
        default: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, Failure> {
        loop {
            let shown = if default.is_empty() { String::new() } else { format!(" [{default}]") };
            self.say(&format!("{question}{shown}: "));
            let mut line = String::new();
            let read = self.input.read_line(&mut line).map_err(Failure::machine)?;
            if read == 0 {
                self.say("\n");
                return Err(Failure::input("the answers end before the last question; nothing is written"));
            }
            let answer = if line.trim().is_empty() { default } else { line.trim() };
            match parse(answer) {
                Ok(value) => return Ok(value),
                Err(problem) => self.say(&format!("  {problem}\n")),
            }
        }
    }

    fn say(&mut self, text: &str) {
        // A closed standard error must not stop the questions.
        let _ = self.output.write_all(text.as_bytes()).and_then(|()| self.output.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Result<usize, String> {
        text.parse().map_err(|_| format!("`{text}` is not a number"))
    }

    #[test]
    fn questions_repeat_until_the_answer_is_valid() {
        let mut prompt = Prompt { input: "many\n 3 \n\n".as_bytes(), output: Vec::new() };
        assert_eq!(prompt.ask("Layers", "", number).ok(), Some(3));
        assert_eq!(prompt.ask("Heads", "8", number).ok(), Some(8));
        assert!(prompt.ask("Batch", "1", number).is_err());
        let said = String::from_utf8(prompt.output).unwrap();
        assert_eq!(said, "Layers:   `many` is not a number\nLayers: Heads [8]: Batch [1]: \n");
    }
}
