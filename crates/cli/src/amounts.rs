//! Sizes, times and other amounts, as people write them. What is wrong with one is said without naming where it stood.

use std::time::Duration;

/// Bytes. The units are powers of 1024, as for those who name memory.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let bad = |why: &str| format!("{why}, as in 512M or 2G");
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(|| bad("give it a unit"))?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| bad("give a whole number and a unit"))?;
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(bad("the units are B, K, M, G and T")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| bad("that is too much"))
}

/// Thousandths of a processor.
pub(crate) fn processors(text: &str) -> Result<u32, String> {
    let bad = |why: &str| format!("{why}, as in 0.5 or 2");
    let number: f64 = text.parse().map_err(|_| bad("give a number"))?;
    // The cast takes what is no number, too little or too much to the ends of the range, which are refused.
    match (number * 1000.0).round() as u32 {
        0 => Err(bad("must be more than zero")),
        u32::MAX => Err(bad("that is too much")),
        milli => Ok(milli),
    }
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let bad = |why: &str| format!("{why}, as in 500ms, 10s, 2m, 1h or 30d");
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(|| bad("give it a unit"))?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| bad("give a whole number and a unit"))?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(bad("the units are ms, s, m, h and d")),
    };
    match number.checked_mul(unit_ms) {
        Some(0) => Err(bad("must be longer than zero")),
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => Err(bad("that is too long")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_a_unit_and_fits() {
        for (text, bytes) in [("64M", 64 << 20), ("2GiB", 2 << 30), ("1tb", 1 << 40), ("5000b", 5000)] {
            assert_eq!(size(text).ok(), Some(bytes), "{text}");
        }
        for text in ["", "64", "M", "1.5G", "-1G", "99999999T", "1X", "1 G"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn processors_are_counted_in_thousandths() {
        for (text, milli) in [("2", 2000), ("0.5", 500), (".25", 250), ("1.0004", 1000)] {
            assert_eq!(processors(text).ok(), Some(milli), "{text}");
        }
        for text in ["", "0", "-1", "NaN", "inf", "1e30", "two", "0.0001"] {
            assert!(processors(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_timeout_has_a_unit() {
        for (text, ms) in [("500ms", 500), ("10s", 10_000), ("2m", 120_000), ("1h", 3_600_000), ("30d", 2_592_000_000)]
        {
            assert_eq!(duration(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for bad in
            ["", "10", "s", "-1s", "1.5s", "10 s", "10sec", "0s", "99999999999999999999s", "18446744073709551615h", "é"]
        {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }
}
