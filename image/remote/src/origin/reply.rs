//! Checks of a reply: its headers, its body's length, its redirect's target, and the message of a
//! refusal.
//!
//! Why here: pure, so that a fuzzer can play the server.
//! Must stay true: no part of a reply is used before it passed these checks, and no allocation
//! depends on a length that it claims: a body takes at most twice the memory of the bytes received,
//! or `BODY_STEP_BYTES`.
//! Source: RFC 9110, sections 8.8 (validators), 14 (range requests), 15.4 (redirection).

use super::{Ask, Identity};
use crate::fault::Fault;
use reqwest::Url;
use reqwest::header::{
    CONTENT_ENCODING, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, LAST_MODIFIED, LOCATION,
};
use sidecore_bare::width::ToU64;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::time::Instant;

/// A part of an image, as announced by the headers of a reply with status 206.
#[derive(Debug, PartialEq, Eq)]
pub struct Promise {
    /// Bytes of the image that the body has.
    pub range: Range<u64>,
    /// The image that it speaks of.
    pub identity: Identity,
}

/// Checks the headers of an answer to `ask`. `known` is the image that must answer. `layer_bytes`
/// is its size if a manifest names it: then its digest is its validator, and validators of caches
/// in front of it are ignored.
pub fn promise(
    headers: &HeaderMap,
    ask: &Ask,
    known: Option<&Identity>,
    layer_bytes: Option<u64>,
) -> Result<Promise, Fault> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    // Ranges of a compressed representation are not ranges of the image.
    if text(&CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(Fault::Final(
            "the server compresses what it sends; the image's own bytes are needed".into(),
        ));
    }
    let Some((range, size_bytes)) = text(&CONTENT_RANGE).and_then(content_range) else {
        return Err(Fault::Passing(
            "a reply does not say which range it is".into(),
        ));
    };
    let identity = Identity {
        size_bytes,
        validator: validator_of(text(&ETAG).or(text(&LAST_MODIFIED)))?,
    };
    // Transient: one server of several may still have the old or already the new image.
    if let Some(known) = known
        && (known.size_bytes != size_bytes
            || layer_bytes.is_none() && known.validator != identity.validator)
    {
        return Err(Fault::Passing(format!(
            "the image has changed since it was opened: {} bytes, validator {}; then {}, {}",
            size_bytes,
            identity.validator.as_deref().unwrap_or("none"),
            known.size_bytes,
            known.validator.as_deref().unwrap_or("none"),
        )));
    }
    if let Some(bytes) = layer_bytes.filter(|&bytes| bytes != size_bytes) {
        return Err(Fault::Passing(format!(
            "the layer has {size_bytes} bytes, its manifest says {bytes}"
        )));
    }
    // A server may answer a part of a range; its frames would be cut off.
    if range != ask.of_size(size_bytes) {
        return Err(Fault::Passing(format!(
            "bytes {} to {} came instead of those that were asked for ({})",
            range.start,
            range.end,
            ask.header()
        )));
    }
    Ok(Promise { range, identity })
}

/// The validator of an image: its entity tag, which changes with each change; else its date, which
/// counts in seconds.
fn validator_of(text: Option<&str>) -> Result<Option<String>, Fault> {
    match text.map(str::len) {
        Some(bytes) if bytes > VALIDATOR_BYTES_MAX => Err(Fault::Final(format!(
            "the image's validator (ETag) has {bytes} bytes, the limit is {VALIDATOR_BYTES_MAX}"
        ))),
        _ => Ok(text.map(str::to_owned)),
    }
}

/// The range and the total size of `bytes 0-9/100`.
fn content_range(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let size = size.parse().ok()?;
    // Only then does the byte after the last one fit in a number.
    (first <= last && last < size).then(|| (first..last + 1, size))
}

/// Target of a redirect: http or https, and never http after https.
pub fn redirected(from: &Url, headers: &HeaderMap) -> Result<Url, Fault> {
    let target = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let target = target.filter(|target| target.len() <= URL_BYTES_MAX);
    let Some(next) = target.and_then(|target| from.join(target).ok()) else {
        return Err(Fault::Final("a redirect names no place".into()));
    };
    // A step from TLS to plain text would let anyone on the way choose the image's bytes.
    let safer = next.scheme() == "https" || from.scheme() == next.scheme();
    if !safer || !matches!(next.scheme(), "http" | "https") {
        return Err(Fault::Final(format!(
            "a redirect leads from {} to {}",
            from.scheme(),
            next.scheme()
        )));
    }
    Ok(next)
}

/// The code by which a store names its refusal, from the beginning of its answer. No read begins
/// after `until`; the code counts if it has come by then.
pub fn error_code(mut answer: impl Read, until: Instant) -> Option<String> {
    let mut bytes = vec![0; REFUSAL_BYTES_MAX];
    let mut done = 0;
    // The client's own limit is for each read, as for a body.
    while done < bytes.len() && Instant::now() <= until {
        match answer.read(&mut bytes[done..]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break,
            Ok(read) => done += read,
        }
    }
    let text = String::from_utf8_lossy(&bytes[..done]);
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    // The code is shown in messages, so it must be one short word.
    let is_plain = code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_plain.then(|| code.to_owned())
}

/// Reads exactly `bytes` of body, before `until`.
pub fn body(
    mut body: impl Read,
    bytes: usize,
    until: Instant,
    on_bytes: &mut dyn FnMut(u64),
) -> Result<Vec<u8>, Fault> {
    let mut buffer = vec![0; bytes.min(BODY_STEP_BYTES)];
    let mut done = 0;
    let failed = |done, error: &dyn std::fmt::Display| {
        Fault::Passing(format!(
            "the body ended after {done} of {bytes} bytes: {error}"
        ))
    };
    while done < bytes {
        // The client's own limit is for each read: a byte now and then would satisfy it for ever.
        if Instant::now() > until {
            return Err(failed(done, &"the server sends too slowly"));
        }
        // Doubled as bytes come in: the claimed length alone must not take memory.
        if done == buffer.len() {
            buffer.resize(bytes.min(2 * done), 0);
        }
        match body.read(&mut buffer[done..]) {
            Ok(0) => return Err(failed(done, &"it is too short")),
            Ok(read) => {
                done += read;
                on_bytes(read.to_u64());
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(done, &error)),
        }
    }
    // Reading to the end also lets the connection be reused.
    match body.read(&mut [0]) {
        Ok(0) => Ok(buffer),
        Ok(_) => Err(Fault::Passing(format!(
            "the body goes on after {bytes} bytes"
        ))),
        Err(error) => Err(failed(done, &error)),
    }
}

/// Initial capacity for a body: enough for nearly every request.
const BODY_STEP_BYTES: usize = 1 << 20;
/// Validators have some tens of bytes; one is stored with every image and shown in messages.
const VALIDATOR_BYTES_MAX: usize = 1024;
/// Signed links have 1 to 4 KiB.
const URL_BYTES_MAX: usize = 16 << 10;
/// Bytes of a refusal that are read.
const REFUSAL_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_body_takes_memory_by_what_has_come() {
        let until = Instant::now() + Duration::from_secs(3600);
        // A petabyte is announced: to allocate it would abort the process.
        let error = body(&[7; 100][..], 1 << 50, until, &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains("after 100 of"), "{error}");
        let bytes: Vec<u8> = (0..5_000_000_u32).map(|at| at as u8).collect();
        let mut told = 0;
        let read = body(&bytes[..], bytes.len(), until, &mut |more| told += more);
        assert_eq!((read.unwrap() == bytes, told), (true, 5_000_000));
        let longer = body(&bytes[..], bytes.len() - 1, until, &mut |_| ());
        assert!(longer.unwrap_err().to_string().contains("goes on after"));
    }

    #[test]
    fn refusals_are_named_by_plain_words_alone() {
        let until = Instant::now() + Duration::from_secs(3600);
        let code = |text: &[u8]| error_code(text, until);
        let plain = b"\xff<Error><Code>NoSuchKey</Code>";
        assert_eq!(code(plain).as_deref(), Some("NoSuchKey"));
        for bad in [
            &b"<Code>\x1b[31m</Code>"[..],
            b"<Code>x",
            b"",
            b"</Code><Code>",
        ] {
            assert_eq!(code(bad), None);
        }
        let far = [vec![b' '; 5000], b"<Code>Late</Code>".to_vec()].concat();
        assert_eq!(code(&far), None);
    }

    /// Sends a space each millisecond, and counts them.
    struct Trickle(u32);

    impl Read for Trickle {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            std::thread::sleep(Duration::from_millis(1));
            self.0 += 1;
            buffer[0] = b' ';
            Ok(1)
        }
    }

    #[test]
    fn a_refusal_that_trickles_in_takes_a_bounded_time() {
        let mut trickle = Trickle(0);
        let until = Instant::now() + Duration::from_millis(20);
        let begin = &b"<Code>SlowDown</Code>"[..];
        let answer = begin.chain(&mut trickle);
        assert_eq!(error_code(answer, until).as_deref(), Some("SlowDown"));
        // Each takes a millisecond or more.
        assert!(trickle.0 <= 21, "{}", trickle.0);
    }

    #[test]
    fn validators_and_links_have_limits() {
        let mut headers = HeaderMap::new();
        let whole = "bytes 0-9/10".parse().expect("a value");
        headers.insert(CONTENT_RANGE, whole);
        headers.insert(ETAG, "x".repeat(2000).parse().expect("a value"));
        let error = promise(&headers, &Ask::Head(100), None, None).unwrap_err();
        assert!(
            error.to_string().contains("2000 bytes, the limit is 1024"),
            "{error}"
        );
        let from = Url::parse("https://host/a").expect("a URL");
        headers.insert(
            LOCATION,
            format!("/{}", "x".repeat(20_000)).parse().expect("a value"),
        );
        assert!(redirected(&from, &headers).is_err());
    }
}
