//! A moment as people write it.
//!
//! Why here: a figure says when it was made; nothing else needs a calendar.
//! Source: Howard Hinnant, "chrono-compatible low-level date algorithms" (civil from days).

/// `22 Nov 2026 08:15 UTC`.
pub(crate) fn date(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Eras of 400 years that begin in March, so that the leap day is a year's last.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let year = year + era * 400 + u64::from(month >= 10);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let name = MONTHS[month as usize % 12];
    format!("{day} {name} {year} {hour:02}:{minute:02} UTC")
}

/// From March on.
const MONTHS: [&str; 12] = [
    "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb",
];

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn moments_are_written_as_date_1_writes_them() {
        for (unix_s, text) in [
            (0, "1 Jan 1970 00:00 UTC"),
            (951_782_399, "28 Feb 2000 23:59 UTC"),
            (951_782_400, "29 Feb 2000 00:00 UTC"),
            (951_868_800, "1 Mar 2000 00:00 UTC"),
            (1_798_761_599, "31 Dec 2026 23:59 UTC"),
            (4_107_542_400, "1 Mar 2100 00:00 UTC"),
        ] {
            assert_eq!(date(unix_s), text);
        }
    }
}
