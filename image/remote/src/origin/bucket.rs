//! Requests for the objects of a bucket that is written to: GET, HEAD, PUT under a condition,
//! DELETE, and lists page by page.
//!
//! Why here: an `Origin` reads ranges of one object that nothing changes; a store
//! of versions has many objects, some of which change, and needs their entity tags.
//! Must stay true: an answer takes memory within the caller's bound. Each call makes one attempt: a
//! write whose answer was lost may have taken place, and its caller finds out. No redirect is
//! followed: a signed request is for one host. An object is written by one request, so that no
//! part of it is left behind.
//! Called from: any thread; blocks.
//! Source: Amazon S3 API Reference (`GetObject`, `HeadObject`, `PutObject`, `DeleteObject`,
//! `ListObjectsV2`); RFC 9110, section 13.1 (If-Match, If-None-Match).

use super::oci::text_of;
use super::reply::{self, Promise};
use super::{Ask, RENEWALS_MAX, aws, client, least_pace};
use crate::Retry;
use crate::fault::Fault;
use bytes::Bytes;
use reqwest::blocking::{Client, Response};
use reqwest::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, ETAG, HeaderMap, HeaderValue, IF_MATCH, IF_NONE_MATCH, RANGE,
};
use reqwest::{Method, Url};
use ring::digest;
use serde::Deserialize;
use sidecore_bare::width::ToUsize;
use sidecore_block::trust::digits_of;
use std::ops::Range;
use std::time::{Duration, Instant};

/// A bucket, and a client of its server.
pub(crate) struct Bucket {
    client: Client,
    place: aws::Bucket,
    /// Longest time without bytes from the server.
    silence_max: Duration,
}

/// An object as it was read.
pub(crate) struct Object {
    pub(crate) bytes: Vec<u8>,
    /// Its entity tag, if the server gives one.
    pub(crate) tag: Option<String>,
}

/// The state of an object that a write requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Any.
    Any,
    /// There is no such object.
    Absent,
    /// The object has this entity tag.
    Tag(String),
}

/// Result of a write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// It took place; the object's entity tag, if the server gives one.
    Done(Option<String>),
    /// The condition did not hold.
    Refused,
    /// The server knows no conditions.
    NoConditions,
}

/// A page of a list.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// Keys of objects, as the server sent them.
    pub keys: Vec<String>,
    /// Token of the next page.
    pub next: Option<String>,
}

impl Bucket {
    /// A bucket of the store that the environment names. Sends nothing yet.
    ///
    /// # Errors
    /// [`Fault`]: the settings or the credentials cannot be used.
    pub(crate) fn new(bucket: &str, retry: &Retry) -> Result<Self, Fault> {
        let client = client(retry, None)?;
        Ok(Self {
            place: aws::Bucket::from_environment(&client, bucket)?,
            client,
            silence_max: retry.attempt_max,
        })
    }

    /// An object of at most `bytes_max`; `None` where there is none.
    ///
    /// # Errors
    /// [`Fault`]; a longer object.
    pub(crate) fn get(&self, key: &str, bytes_max: u64) -> Result<Option<Object>, Fault> {
        let sent = Instant::now();
        let url = self.place.url(key)?;
        let response = self.send(&Method::GET, &url, &HeaderMap::new(), None)?;
        let until = sent + self.silence_max;
        if response.status().as_u16() == 404 {
            return is_of_object(response, until).map(|()| None);
        }
        if response.status().as_u16() != 200 {
            return Err(self.fault(response, until, "a request for an object"));
        }
        let encoding = response.headers().get(CONTENT_ENCODING);
        if encoding.is_some_and(|encoding| encoding != "identity") {
            return Err(Fault::Final("the server compresses what it sends".into()));
        }
        let len = length_of(response.headers())?;
        if len > bytes_max {
            return Err(Fault::Final(format!(
                "it has {len} bytes, and {bytes_max} are the most of its kind"
            )));
        }
        let tag = tag_of(response.headers());
        let len = len.to_usize();
        let bytes = reply::body(response, len, until + least_pace(len), &mut |_| ())?;
        Ok(Some(Object { bytes, tag }))
    }

    /// The bytes of a range that is not empty.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) fn read(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Fault> {
        match self.part(key, &Ask::Range(range))? {
            Some((_, bytes)) => Ok(bytes),
            None => Err(Fault::Final("there is no such object".into())),
        }
    }

    /// The last bytes of an object that is not empty, at most `bytes_max`, with its size in bytes;
    /// `None` where there is none.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) fn end(&self, key: &str, bytes_max: u64) -> Result<Option<(u64, Vec<u8>)>, Fault> {
        self.part(key, &Ask::Tail(bytes_max.max(1)))
    }

    fn part(&self, key: &str, ask: &Ask) -> Result<Option<(u64, Vec<u8>)>, Fault> {
        let sent = Instant::now();
        let headers = HeaderMap::from_iter([(RANGE, value(&ask.header())?)]);
        let response = self.send(&Method::GET, &self.place.url(key)?, &headers, None)?;
        let until = sent + self.silence_max;
        match response.status().as_u16() {
            206 => {}
            404 => return is_of_object(response, until).map(|()| None),
            _ => return Err(self.fault(response, until, "a request for a range of an object")),
        }
        let Promise { range, identity } = reply::promise(response.headers(), ask, None, None)?;
        let len = (range.end - range.start).to_usize();
        let bytes = reply::body(response, len, until + least_pace(len), &mut |_| ())?;
        Ok(Some((identity.size_bytes, bytes)))
    }

    /// Size in bytes and entity tag of an object; `None` where there is none.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) fn look(&self, key: &str) -> Result<Option<(u64, Option<String>)>, Fault> {
        let sent = Instant::now();
        let url = self.place.url(key)?;
        let response = self.send(&Method::HEAD, &url, &HeaderMap::new(), None)?;
        match response.status().as_u16() {
            200 => {
                let tag = tag_of(response.headers());
                Ok(Some((length_of(response.headers())?, tag)))
            }
            404 => Ok(None),
            _ => {
                let until = sent + self.silence_max;
                Err(self.fault(response, until, "a look at an object"))
            }
        }
    }

    /// Writes an object under a condition, by one request.
    ///
    /// # Errors
    /// [`Fault`]; a passing one may have written the object all the same.
    pub(crate) fn put(
        &self,
        key: &str,
        bytes: &Bytes,
        condition: &Condition,
    ) -> Result<Written, Fault> {
        let sent = Instant::now();
        // Signed with the request, so that a proxy on the way cannot change the bytes.
        let hash = digits_of(digest::digest(&digest::SHA256, bytes).as_ref());
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-content-sha256", value(&hash)?);
        match condition {
            Condition::Any => {}
            Condition::Absent => {
                headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
            }
            Condition::Tag(tag) => {
                headers.insert(IF_MATCH, value(tag)?);
            }
        }
        let url = self.place.url(key)?;
        let response = self.send(&Method::PUT, &url, &headers, Some(bytes))?;
        let is_bound = *condition != Condition::Any;
        match response.status().as_u16() {
            200 | 201 | 204 => Ok(Written::Done(tag_of(response.headers()))),
            412 if is_bound => Ok(Written::Refused),
            // Of an object that is gone, S3 says that it is not there.
            404 if matches!(condition, Condition::Tag(_)) => {
                let until = sent + self.silence_max;
                is_of_object(response, until).map(|()| Written::Refused)
            }
            501 if is_bound => Ok(Written::NoConditions),
            // Another conditional write of the same object is in progress.
            409 if is_bound => Err(Fault::Passing(
                "the server answered 409 to a conditional write".into(),
            )),
            _ => {
                let until = sent + self.silence_max + least_pace(bytes.len());
                Err(self.fault(response, until, "a write of an object"))
            }
        }
    }

    /// Removes an object; one that is not there is no error.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) fn delete(&self, key: &str) -> Result<(), Fault> {
        let sent = Instant::now();
        let url = self.place.url(key)?;
        let response = self.send(&Method::DELETE, &url, &HeaderMap::new(), None)?;
        let until = sent + self.silence_max;
        match response.status().as_u16() {
            200 | 202 | 204 => Ok(()),
            404 => is_of_object(response, until),
            _ => Err(self.fault(response, until, "a removal of an object")),
        }
    }

    /// A page of the keys that begin with `prefix`.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) fn list(&self, prefix: &str, token: Option<&str>) -> Result<Page, Fault> {
        let sent = Instant::now();
        let mut query = vec![("list-type", "2"), ("max-keys", "1000"), ("prefix", prefix)];
        query.extend(token.map(|token| ("continuation-token", token)));
        let url = self.place.list_url(&query)?;
        let response = self.send(&Method::GET, &url, &HeaderMap::new(), None)?;
        if response.status().as_u16() != 200 {
            let until = sent + self.silence_max;
            return Err(self.fault(response, until, "a request for a list of objects"));
        }
        let page = page(&text_of(response, PAGE_BYTES_MAX, self.silence_max)?)?;
        // Half a list would pass for all of it, and what it lacks for what nothing needs.
        if page.keys.iter().any(|key| !key.starts_with(prefix)) {
            return Err(Fault::Final(
                "the server lists other keys than those that were asked for".into(),
            ));
        }
        Ok(page)
    }

    fn send(
        &self,
        method: &Method,
        url: &Url,
        headers: &HeaderMap,
        body: Option<&Bytes>,
    ) -> Result<Response, Fault> {
        let mut left = RENEWALS_MAX;
        loop {
            let (keys, signed) = self.place.sign(method, url, headers.clone())?;
            let request = self.client.request(method.clone(), url.clone());
            let mut request = request.headers(signed);
            if let Some(body) = body {
                // For an answer the client's own limit is enough: it is for each read, and this
                // one for all of them.
                let time = self.silence_max + least_pace(body.len());
                request = request.body(body.clone()).timeout(time);
            }
            let response = request.send()?;
            // Temporary keys may have been replaced meanwhile. A store answers 400 if they have
            // expired.
            let refused = matches!(response.status().as_u16(), 400 | 401 | 403);
            if !refused || left == 0 || !self.place.renew(keys.as_ref()) {
                return Ok(response);
            }
            left -= 1;
        }
    }

    /// The fault of an answer that is no success.
    fn fault(&self, response: Response, until: Instant, doing: &str) -> Fault {
        let status = response.status();
        if status.is_redirection() {
            return Fault::Final(format!(
                "the server answered {} to {doing}: name the bucket's region in AWS_REGION",
                status.as_u16()
            ));
        }
        let code = reply::error_code(response, until);
        let doing = code.map_or_else(|| doing.to_owned(), |code| format!("{doing} with {code}"));
        match (status.as_u16(), self.place.lacks()) {
            // Those of an image speak of other causes.
            (404 | 412, _) => {
                let status = status.as_u16();
                Fault::Final(format!("the server answered {status} to {doing}"))
            }
            (status, why) => match (Fault::of_status(status, &doing), why) {
                (Fault::Final(text), Some(why)) => Fault::Final(format!("{text} ({why})")),
                (fault, _) => fault,
            },
        }
    }
}

/// Makes sure that an answer 404 speaks of an object, and not of its bucket.
fn is_of_object(response: Response, until: Instant) -> Result<(), Fault> {
    match reply::error_code(response, until).as_deref() {
        Some("NoSuchBucket") => Err(Fault::Final("there is no such bucket".into())),
        _ => Ok(()),
    }
}

/// Reads a page of a list (`ListObjectsV2`).
///
/// # Errors
/// [`Fault::Passing`]: it is none.
pub fn page(text: &[u8]) -> Result<Page, Fault> {
    let wrong = |reason: &dyn std::fmt::Display| {
        Fault::Passing(format!("a list of objects cannot be read: {reason}"))
    };
    let text = std::str::from_utf8(text).map_err(|error| wrong(&error))?;
    let list: List = quick_xml::de::from_str(text).map_err(|error| wrong(&error))?;
    let keys: Vec<String> = list.contents.into_iter().map(|it| it.key).collect();
    if keys.len() > PAGE_KEYS_MAX {
        return Err(wrong(&"it has more keys than were asked for"));
    }
    match (list.is_truncated, list.next) {
        (false, _) => Ok(Page { keys, next: None }),
        (true, Some(next)) if (1..=TOKEN_BYTES_MAX).contains(&next.len()) => {
            let next = Some(next);
            Ok(Page { keys, next })
        }
        // Half a list would pass for all of it.
        (true, _) => Err(wrong(&"it goes on, and does not say where")),
    }
}

#[derive(Deserialize)]
struct List {
    #[serde(rename = "IsTruncated")]
    is_truncated: bool,
    #[serde(rename = "NextContinuationToken")]
    next: Option<String>,
    #[serde(rename = "Contents", default)]
    contents: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "Key")]
    key: String,
}

/// The length of a body, as its headers state it.
fn length_of(headers: &HeaderMap) -> Result<u64, Fault> {
    let text = headers.get(CONTENT_LENGTH).and_then(|it| it.to_str().ok());
    let length = text.and_then(|text| text.parse().ok());
    length.ok_or_else(|| Fault::Passing("an answer does not state its length".into()))
}

/// The entity tag of an object; a weak one says less than a condition needs.
fn tag_of(headers: &HeaderMap) -> Option<String> {
    let tag = headers.get(ETAG)?.to_str().ok()?;
    let is_strong = !tag.is_empty() && !tag.starts_with("W/") && tag.len() <= TAG_BYTES_MAX;
    is_strong.then(|| tag.to_owned())
}

fn value(text: &str) -> Result<HeaderValue, Fault> {
    HeaderValue::from_str(text).map_err(|error| Fault::Final(error.to_string()))
}

/// Keys of a page that are asked for, the most that S3 gives.
const PAGE_KEYS_MAX: usize = 1000;
/// Keys have at most 1,024 bytes, some of which take six in XML; the rest of an entry is short.
const PAGE_BYTES_MAX: u64 = 8 << 20;
/// Tokens have some hundred bytes; one is a part of the next URL.
const TOKEN_BYTES_MAX: usize = 4096;
/// Entity tags have some tens of bytes.
const TAG_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(keys: &[&str], end: &str) -> Vec<u8> {
        let object = |key: &&str| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>");
        let objects: String = keys.iter().map(object).collect();
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult \
             xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>{objects}{end}\
             </ListBucketResult>"
        )
        .into_bytes()
    }

    #[test]
    fn pages_are_read_and_half_ones_refused() {
        let last = "<IsTruncated>false</IsTruncated>";
        let none = page(&listed(&[], last)).unwrap();
        assert_eq!((none.keys.len(), none.next), (0, None));
        let odd = page(&listed(&["a/packs/1", "a &amp; b/&#60;x"], last)).unwrap();
        assert_eq!(odd.keys, ["a/packs/1", "a & b/<x"]);
        let more = "<IsTruncated>true</IsTruncated>\
                    <NextContinuationToken>a+b/c==</NextContinuationToken>";
        let first = page(&listed(&["x"], more)).unwrap();
        assert_eq!(first.next.as_deref(), Some("a+b/c=="));
        let many = vec!["k"; 1001];
        let long = format!(
            "<IsTruncated>true</IsTruncated><NextContinuationToken>{}</NextContinuationToken>",
            "t".repeat(5000)
        );
        for wrong in [
            listed(&["x"], "<IsTruncated>true</IsTruncated>"),
            listed(&["x"], &long),
            listed(&["x"], ""),
            listed(&many, last),
            listed(&["&unknown;"], last),
            b"<html>".to_vec(),
            b"\xff".to_vec(),
            Vec::new(),
        ] {
            let text = String::from_utf8_lossy(&wrong).into_owned();
            page(&wrong).expect_err(&text);
        }
        let whole = listed(&["a", "b"], last);
        for len in 0..whole.len() {
            page(&whole[..len]).unwrap_err();
        }
    }
}
