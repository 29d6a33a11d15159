//! AWS Signature Version 4 for a GET without a body, in headers.
//!
//! Why here: no HTTP is done here, and of the whole protocol only this one form is needed.
//! Must stay true: pure; the time comes in.
//! Source: AWS, "Authenticating Requests: Using the Authorization Header (AWS Signature Version
//! 4)".

use ring::{digest, hmac};
use sidecore_block::trust::digits_of;

/// Who signs.
#[derive(Clone)]
pub(super) struct Credentials {
    pub(super) access_key: String,
    pub(super) secret_key: String,
    pub(super) session_token: Option<String>,
}

/// A request to be signed.
pub(super) struct Request<'a> {
    /// Host, with the port where it is not the scheme's.
    pub(super) host: &'a str,
    /// The path, encoded as it is sent.
    pub(super) path: &'a str,
    /// The header `Range`.
    pub(super) range: &'a str,
    /// The region that the credentials' scope names.
    pub(super) region: &'a str,
    /// Seconds since 1970.
    pub(super) unix_s: u64,
}

/// All headers of the signed request but `Host`.
pub(super) fn headers(
    request: &Request<'_>,
    credentials: Option<&Credentials>,
) -> Vec<(&'static str, String)> {
    let Some(credentials) = credentials else {
        return vec![("range", request.range.to_owned())];
    };
    let (date, time) = civil(request.unix_s);
    // In the order of their names, as they are signed.
    let mut headers = vec![
        ("range", request.range.to_owned()),
        (
            "x-amz-content-sha256",
            digits_of(digest::digest(&digest::SHA256, b"").as_ref()),
        ),
        ("x-amz-date", format!("{date}T{time}Z")),
    ];
    if let Some(token) = &credentials.session_token {
        headers.push(("x-amz-security-token", token.clone()));
    }
    let mut canonical = format!("GET\n{}\n\nhost:{}\n", request.path, request.host);
    let mut names = "host".to_owned();
    for (name, value) in &headers {
        canonical.push_str(&format!("{name}:{}\n", value.trim()));
        names.push_str(&format!(";{name}"));
    }
    canonical.push_str(&format!("\n{names}\n{}", headers[1].1));
    let scope = format!("{date}/{}/s3/aws4_request", request.region);
    let hashed = digits_of(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let to_sign = format!("AWS4-HMAC-SHA256\n{date}T{time}Z\n{scope}\n{hashed}");
    let mut key = format!("AWS4{}", credentials.secret_key).into_bytes();
    for part in [&date, request.region, "s3", "aws4_request", &to_sign] {
        let signer = hmac::Key::new(hmac::HMAC_SHA256, &key);
        key = hmac::sign(&signer, part.as_bytes()).as_ref().to_vec();
    }
    let (access_key, signature) = (&credentials.access_key, digits_of(&key));
    headers.push((
        "authorization",
        format!(
            "AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, \
             Signature={signature}"
        ),
    ));
    headers
}

/// A path as S3 wants it encoded: every byte but the unreserved ones and the slash.
pub(super) fn encode_path(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(byte.into());
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// `YYYYMMDD` and `HHMMSS` of a time; Howard Hinnant's "chrono-Compatible Low-Level Date
/// Algorithms", civil_from_days.
fn civil(unix_s: u64) -> (String, String) {
    let (days, rest) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hours, minutes, seconds) = (rest / 3600, rest / 60 % 60, rest % 60);
    (
        format!("{year:04}{month:02}{day:02}"),
        format!("{hours:02}{minutes:02}{seconds:02}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example "GET Object" of the document named above.
    #[test]
    fn the_documents_example_has_the_documents_signature() {
        let credentials = Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session_token: None,
        };
        let request = Request {
            host: "examplebucket.s3.amazonaws.com",
            path: "/test.txt",
            range: "bytes=0-9",
            region: "us-east-1",
            unix_s: 1_369_353_600,
        };
        let headers = headers(&request, Some(&credentials));
        let authorization = &headers.last().expect("headers").1;
        let signature = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
        assert!(authorization.ends_with(signature), "{authorization}");
        assert!(headers.contains(&("x-amz-date", "20130524T000000Z".into())));
    }

    #[test]
    fn dates_and_paths() {
        assert_eq!(civil(0), ("19700101".into(), "000000".into()));
        assert_eq!(civil(951_827_696), ("20000229".into(), "123456".into()));
        assert_eq!(encode_path("/a b/ü+~.img"), "/a%20b/%C3%BC%2B~.img");
    }
}
