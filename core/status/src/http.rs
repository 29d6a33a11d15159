//! Metrics over HTTP/1.1: one GET, one answer, and the connection ends.
//!
//! Must stay true: any bytes have an answer or an end; no I/O. Source: RFC 9112.

use crate::Status;
use crate::metrics::MEDIA_TYPE;
use crate::service::{Dialect, Step};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Answers with one status' metrics.
pub(crate) struct Http(pub(crate) Arc<Status>);

impl Dialect for Http {
    fn step(&self, input: &[u8]) -> Step {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let used = match request.parse(input) {
            Ok(httparse::Status::Complete(used)) => used,
            // A head that grows without an end is refused as a wrong one is.
            Ok(httparse::Status::Partial) if input.len() < HEAD_BYTES_MAX => return Step::More,
            _ => {
                return answer(
                    input.len(),
                    "400 Bad Request",
                    "not a request for metrics\n",
                    "",
                );
            }
        };
        let path = request.path.unwrap_or_default();
        // A query has no meaning here, and does no harm.
        let path = path.split('?').next().unwrap_or_default();
        match (request.method, path) {
            (Some("GET"), "/metrics" | "/") => {
                let kind = format!("Content-Type: {MEDIA_TYPE}\r\n");
                answer(used, "200 OK", &self.0.metrics(), &kind)
            }
            (Some("GET"), _) => answer(used, "404 Not Found", "metrics are at /metrics\n", ""),
            _ => {
                let allow = "Allow: GET\r\n";
                answer(used, "405 Method Not Allowed", "only GET\n", allow)
            }
        }
    }

    /// The file's mode decides at a local socket, the address at a port.
    fn admits(&self, _: &OwnedFd) -> bool {
        true
    }
}

fn answer(used: usize, status: &str, body: &str, headers: &str) -> Step {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}Connection: close\r\n\r\n"
    );
    Step::Answer {
        used,
        bytes: (head + body).into_bytes(),
        last: true,
    }
}

/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 8192;
/// The most headers of a request.
const HEADERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use proptest::prelude::*;
    use serde_json::json;

    fn ask(request: &[u8]) -> Option<String> {
        match Http(Status::new(Kind::Image, "a", || json!({}))).step(request) {
            Step::Answer { bytes, last, .. } => {
                assert!(last);
                Some(String::from_utf8(bytes).unwrap())
            }
            Step::More => None,
            Step::Close => panic!("it always answers"),
        }
    }

    #[test]
    fn requests_have_their_answers() {
        let good = ask(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert!(
            good.starts_with("HTTP/1.1 200 OK\r\n") && good.contains(MEDIA_TYPE),
            "{good}"
        );
        let (_, body) = good.split_once("\r\n\r\n").unwrap();
        assert!(good.contains(&format!("Content-Length: {}\r\n", body.len())));
        let samples = crate::metrics::strict::parse(body).unwrap();
        assert_eq!(samples[0].0, "sidecore_server_start_time_seconds");
        assert!(ask(b"GET /met").is_none());
        assert!(ask(b"GET /x HTTP/1.1\r\n\r\n").unwrap().contains(" 404 "));
        assert!(
            ask(b"POST /metrics HTTP/1.1\r\n\r\n")
                .unwrap()
                .contains(" 405 ")
        );
        assert!(ask(b"\x16\x03\x01\x02\x00").unwrap().contains(" 400 "));
        let long = [b"GET / HTTP/1.1\r\nA: ", &[b'x'; HEAD_BYTES_MAX][..]].concat();
        assert!(ask(&long).unwrap().contains(" 400 "));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..99)) {
            ask(&bytes);
        }
    }
}
