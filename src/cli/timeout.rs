//! Durations with a required unit, as for sizes.

use std::time::Duration;

/// `90s`, `10m`, `1.5h`, `500ms`: a number and a unit.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let advice = || format!("`{text}` is not a duration; write a number and a unit, such as 90s, 10m or 2h");
    let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(advice)?;
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{unit}` is not a unit of time; use ms, s, m or h")),
    };
    let number = number.trim();
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(advice());
    }
    let number: f64 = number.parse().map_err(|_| advice())?;
    let duration = Duration::try_from_secs_f64(number * seconds).map_err(|_| advice())?;
    if duration.is_zero() { Err("a duration must be above 0".into()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_strict() {
        assert_eq!(parse("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(parse("1.5 h"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["10", "", "m", "-1s", "1.2.3s", "1e3s", "0s", "999999999999999999999h"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse("5 min").unwrap_err(), "`min` is not a unit of time; use ms, s, m or h");
    }
}
