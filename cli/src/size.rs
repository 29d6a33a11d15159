//! Sizes on the command line: `64KiB`, `1.5GiB`, `100KB`, `2G`, `65536`.

/// Parses a size in bytes. `K`, `M`, `G` and `T`, alone or with `iB`, are powers of 1024; with `B`
/// alone (`100KB`) they are powers of 1000. Upper or lower case; a fraction of a byte is cut off.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    let digits_end = text.find(|c| !is_digit(c)).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let unit = unit.trim().to_ascii_lowercase();
    let (base, power) = match unit.as_str() {
        "" | "b" => (1_u128, 1),
        "k" | "kib" => (1024, 1),
        "m" | "mib" => (1024, 2),
        "g" | "gib" => (1024, 3),
        "t" | "tib" => (1024, 4),
        "kb" => (1000, 1),
        "mb" => (1000, 2),
        "gb" => (1000, 3),
        "tb" => (1000, 4),
        other => {
            return Err(format!(
                "unknown unit `{other}`; write a size as 65536, 64KiB, 1MiB or 2GiB"
            ));
        }
    };
    let no_size = || format!("`{text}` is no size; write it as 65536, 64KiB, 1MiB or 2GiB");
    let too_large = || format!("`{text}` is more than this machine can count");
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    // In whole numbers, so that 0.1TB is exact.
    let places = u32::try_from(fraction.len()).unwrap_or(u32::MAX);
    if whole.is_empty() || !(1..=9).contains(&places) {
        return Err(no_size());
    }
    let scale = 10_u128.pow(places);
    let whole: u64 = whole.parse().map_err(|_| no_size())?;
    let fraction: u64 = fraction.parse().map_err(|_| no_size())?;
    let count = u128::from(whole) * scale + u128::from(fraction);
    let bytes = count.checked_mul(base.pow(power)).ok_or_else(too_large)? / scale;
    u64::try_from(bytes).map_err(|_| too_large())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_as_the_field_writes_them() {
        assert_eq!(parse("65536"), Ok(65536));
        assert_eq!(parse("64KiB"), Ok(65536));
        assert_eq!(parse("64k"), Ok(65536));
        assert_eq!(parse("1MiB"), Ok(1 << 20));
        assert_eq!(parse("2G"), Ok(2 << 30));
        assert_eq!(parse("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse("100KB"), Ok(100_000));
        assert_eq!(parse("0.1 TB"), Ok(100_000_000_000));
        assert_eq!(parse("1.0001k"), Ok(1024));
        for text in [".5G", "1.G", "1.2.3", "1.0123456789M", "-1", "1,5G"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("").is_err());
        assert!(parse("12XB").is_err());
        assert!(parse("99999999999T").is_err());
    }
}
