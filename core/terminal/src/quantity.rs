//! Sizes and durations as people write them: `1.5GiB`, `100KB`, `65536`; `90`, `1.5h`, `250ms`.
//!
//! Must stay true: whole numbers are exact; a refusal names the forms that are taken.

use std::time::Duration;

/// Parses a size in bytes. `K`, `M`, `G` and `T`, alone or with `iB`, are powers of 1024; with `B`
/// alone (`100KB`) they are powers of 1000. Upper or lower case; a fraction of a byte is cut off.
///
/// ```
/// assert_eq!(sidecore_terminal::quantity::size("1.5KiB"), Ok(1536));
/// ```
///
/// # Errors
/// A line that names the forms.
pub fn size(text: &str) -> Result<u64, String> {
    let refused = || format!("`{text}` is no size; write it as 65536, 64KiB, 1.5GiB or 100MB");
    let (digits, unit) = split(text);
    let (base, power) = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => (1_u128, 1),
        "k" | "kib" => (1024, 1),
        "m" | "mib" => (1024, 2),
        "g" | "gib" => (1024, 3),
        "t" | "tib" => (1024, 4),
        "kb" => (1000, 1),
        "mb" => (1000, 2),
        "gb" => (1000, 3),
        "tb" => (1000, 4),
        _ => return Err(refused()),
    };
    let bytes = scaled(digits, base.pow(power)).ok_or_else(refused)?;
    u64::try_from(bytes).map_err(|_| format!("`{text}` is more than this machine can count"))
}

/// Parses a duration: seconds, or a number with `ms`, `s`, `min`, `h` or `d`. More than 0 and at
/// most 1,000 years.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(sidecore_terminal::quantity::duration("1.5min"), Ok(Duration::from_secs(90)));
/// ```
///
/// # Errors
/// A line that names the forms.
pub fn duration(text: &str) -> Result<Duration, String> {
    let refused = || format!("`{text}` is no time; write it as 90, 0.5, 250ms, 10s, 5min or 2h");
    let (digits, unit) = split(text);
    let milliseconds = match unit.to_ascii_lowercase().as_str() {
        "ms" => 1_u128,
        "" | "s" | "sec" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(refused()),
    };
    let nanoseconds = scaled(digits, milliseconds * 1_000_000).ok_or_else(refused)?;
    let nanoseconds = Some(nanoseconds).filter(|it| (1..=NANOSECONDS_MAX).contains(it));
    let nanoseconds = nanoseconds.ok_or_else(refused)?;
    let seconds = u64::try_from(nanoseconds / 1_000_000_000).map_err(|_| refused())?;
    let rest = u32::try_from(nanoseconds % 1_000_000_000).map_err(|_| refused())?;
    Ok(Duration::new(seconds, rest))
}

/// The number and the unit behind it.
fn split(text: &str) -> (&str, &str) {
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    let end = text.find(|c| !is_digit(c)).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    (digits, unit.trim())
}

/// A decimal number times `unit`, cut to a whole number; `None` for what is no number.
fn scaled(digits: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    // In whole numbers, so that 0.1TB is exact.
    let places = u32::try_from(fraction.len()).ok()?;
    // More than nine places mean nothing to a size or a time.
    if whole.is_empty() || !(1..=9).contains(&places) {
        return None;
    }
    let scale = 10_u128.pow(places);
    let (whole, fraction): (u64, u64) = (whole.parse().ok()?, fraction.parse().ok()?);
    let count = u128::from(whole) * scale + u128::from(fraction);
    Some(count.checked_mul(unit)? / scale)
}

/// 1,000 years.
const NANOSECONDS_MAX: u128 = 1000 * 365 * 86_400 * 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_as_the_field_writes_them() {
        for (text, bytes) in [
            ("65536", 65536),
            ("64KiB", 65536),
            ("64k", 65536),
            ("1MiB", 1 << 20),
            ("2G", 2 << 30),
            ("1.5GiB", 3 << 29),
            ("100KB", 100_000),
            ("64kB", 64_000),
            ("0.1 TB", 100_000_000_000),
            ("1.0001k", 1024),
            ("0", 0),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            ".5G",
            "1.G",
            "1.2.3",
            "1.0123456789M",
            "-1",
            "1,5G",
            "",
            "12XB",
            "GiB",
        ] {
            let refused = size(text).expect_err(text);
            assert!(refused.contains("write it as"), "{refused}");
        }
        assert!(size("99999999999T").is_err());
    }

    #[test]
    fn durations_are_seconds_unless_they_say_otherwise() {
        for (text, ms) in [
            ("90", 90_000),
            ("0.5", 500),
            ("250ms", 250),
            ("10s", 10_000),
            ("5 min", 300_000),
            ("1.5h", 5_400_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "0",
            "-1",
            "1e9",
            "x",
            "5 weeks",
            "99999999999999d",
            "nan",
            "inf",
        ] {
            let refused = duration(text).expect_err(text);
            assert!(refused.contains("write it as"), "{refused}");
        }
    }
}
