//! Labels of the runs of an experiment: the strategy's name and axis values.

/// A swept key and its value, as written in TOML.
pub type Axis = (String, String);

/// The parts of the label of a strategy with its own axes: `bf16/accumulate=2,seed=1`.
#[derive(Debug)]
pub struct Label<'a> {
    /// The strategy's name in its file.
    pub name: &'a str,
    /// The parts behind the name, each with its axis.
    pub parts: Vec<(&'a str, &'a Axis)>,
    /// The axes that the label does not contain: those shared by all strategies.
    pub shared: Vec<&'a Axis>,
}

impl<'a> Label<'a> {
    /// Splits a label. Values may contain separators, so known values are stripped from the end.
    pub fn of(strategy: &'a str, axes: &'a [Axis]) -> Label<'a> {
        let mut rest = strategy;
        let mut parts: Vec<(&str, &Axis)> = Vec::new();
        let last = |rest: &'a str| {
            axes.iter().find_map(|axis| {
                let before = rest.strip_suffix(axis.1.trim_matches('"'))?.strip_suffix('=')?;
                let at = before.rfind(['/', ','])?;
                let name = &before[at + 1..];
                let is_of = axis.0 == name || axis.0.ends_with(&format!(".{name}"));
                is_of.then_some((at, axis))
            })
        };
        while let Some((at, axis)) = last(rest) {
            parts.insert(0, (&rest[at + 1..], axis));
            let is_first = rest[at..].starts_with('/');
            rest = &rest[..at];
            if is_first {
                let is_shared = |axis: &&Axis| parts.iter().all(|(_, of)| of != axis);
                let shared = axes.iter().filter(is_shared).collect();
                return Label { name: rest, parts, shared };
            }
        }
        Label { name: strategy, parts: Vec::new(), shared: axes.iter().collect() }
    }
}

/// `lean/accumulate=2, train.batch_size = 8`: each axis once.
pub fn title(strategy: &str, axes: &[Axis]) -> String {
    let shared = Label::of(strategy, axes).shared;
    let shared: String = shared.into_iter().map(|(key, value)| format!(", {key} = {value}")).collect();
    format!("{strategy}{shared}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_contains_each_axis_once() {
        let axis = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let axes = [axis("train.batch_size", "8"), axis("recompute", "[\"mlp\", \"norm\"]")];
        assert_eq!(
            title("lean/recompute=[\"mlp\", \"norm\"]", &axes),
            "lean/recompute=[\"mlp\", \"norm\"], train.batch_size = 8"
        );
        assert_eq!(title("lean", &axes[..1]), "lean, train.batch_size = 8");
    }
}
