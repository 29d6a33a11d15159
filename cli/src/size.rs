//! Sizes on the command line: `64KiB`, `1MiB`, `2G`, `65536`.

/// Parses a size in bytes. Units are powers of 1024, with or without `iB` (`64K`, `64KiB`), upper
/// or lower case.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits_end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        other => {
            return Err(format!(
                "unknown unit `{other}`; write a size as 65536, 64KiB, 1MiB or 2GiB"
            ));
        }
    };
    let value: u64 = digits
        .parse()
        .map_err(|_| format!("`{text}` is no size; write it as 65536, 64KiB, 1MiB or 2GiB"))?;
    value
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("`{text}` is more than this machine can count"))
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
        assert!(parse("").is_err());
        assert!(parse("12XB").is_err());
        assert!(parse("99999999999T").is_err());
    }
}
